"""Hydra's plug-in of holmes_hpc: where a user's own configuration files lie."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from holmes_hpc.config.folders import user_folder


class UserFolderSearchPath(SearchPathPlugin):
    """Adds a user's own folder, `~/.config/holmes_hpc`, when it exists."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder to Hydra's search path."""
        folder = user_folder()
        if folder is not None and folder.is_dir():
            search_path.append(provider="holmes_hpc", path=f"file://{folder}")
