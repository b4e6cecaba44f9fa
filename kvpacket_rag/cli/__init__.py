"""The `kvpacket` command, one file for each group of commands.

Commands translate options into calls and print the results. Heavy imports happen inside the commands, so that help
texts and errors appear at once. This part imports every other part.
"""
