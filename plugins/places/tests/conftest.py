from command_line import folder, net, refused  # noqa: F401
