"""Published families of models: what their configurations say in our settings, and where their weights lie."""

from holmes_hpc.families.family import FAMILIES, Family, Source, family_named
from holmes_hpc.families.folder import FOLDER_KEY, ModelFolder
from holmes_hpc.families.reading import NotKnownError, sample_length, settings_of
from holmes_hpc.families.writing import configuration_of

__all__ = ["FAMILIES", "FOLDER_KEY", "Family", "ModelFolder", "NotKnownError", "Source", "configuration_of",
           "family_named", "sample_length", "settings_of"]
