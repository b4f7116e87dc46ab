from command_line import folder, net, refused  # noqa: F401
from site_folder import site  # noqa: F401
