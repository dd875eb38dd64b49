"""`python -m nbhelpers` is the command `nbhelpers`."""

from nbhelpers.cli import main

if __name__ == "__main__":
    main()
