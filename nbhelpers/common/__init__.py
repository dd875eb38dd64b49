"""What every folder uses: files, processes, display, errors of the hub."""
