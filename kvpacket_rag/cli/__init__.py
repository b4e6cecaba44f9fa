"""The `kvpacket` command, one file for each group of commands.

Commands translate options into calls, and print. Heavy imports happen inside the commands, so that help and errors come at once; it imports every other part.
"""
