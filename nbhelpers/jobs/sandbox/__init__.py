"""Generated programs run here, without network, files of the user, or time to waste."""
