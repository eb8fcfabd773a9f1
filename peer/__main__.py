"""`python -m peer` is `peer`."""

from peer.cli import main

if __name__ == "__main__":
    main()
