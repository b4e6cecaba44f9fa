"""Run the command as `python -m kvpacket_rag`."""

from kvpacket_rag.cli import main

if __name__ == "__main__":
    main()
