"""`python -m nbhelpers` is the command `nbhelpers`."""

from nbhelpers.cli.app import main

if __name__ == "__main__":
    main()
