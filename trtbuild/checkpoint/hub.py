"""Models named by a hub id (`owner/name`, `owner/name@revision`), fetched through huggingface_hub."""

from __future__ import annotations

import re
from pathlib import Path

from trtbuild.checkpoint.huggingface_files import ASSET_NAMES
from trtbuild.errors import InputRefused, MachineLacks

_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
_WANTED = ("config.json", "*.safetensors", "*.safetensors.index.json", *ASSET_NAMES)
_UNWANTED = ("consolidated*", "*/*")
"""The same weights again, in another layout."""


def looks_like_hub_id(location: str) -> bool:
    """Whether a text could name a model of the hub; a path that exists has precedence over that."""
    return _HUB_ID.fullmatch(location) is not None


def fetch(location: str) -> Path:
    """Bring a model into the local hub cache (only what is missing there) and return its folder.

    Raises InputRefused when the hub knows no such model or does not give it out, MachineLacks when no hub answers
    and the cache does not hold the model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match = _HUB_ID.fullmatch(location)
    if match is None:
        raise InputRefused("not a hub id", where=location, hint="a hub id is owner/name or owner/name@revision")
    try:
        return Path(
            snapshot_download(
                match["name"],
                revision=match["revision"],
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_UNWANTED),
            )
        )
    except GatedRepoError as error:
        hint = "accept its licence on its page, then log in with `hf auth login`"
        raise InputRefused(
            "the hub gives this model only to those who asked for it", where=location, hint=hint
        ) from error
    except RepositoryNotFoundError as error:
        hint = "check the spelling; a private model needs `hf auth login`"
        raise InputRefused("no such folder here, and no such model on the hub", where=location, hint=hint) from error
    except RevisionNotFoundError as error:
        raise InputRefused("no such revision on the hub", where=location) from error
    except HFValidationError as error:
        raise InputRefused(f"no such folder here, and not a hub id: {_first_line(error)}", where=location) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _unreachable(location, error) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a full disk or a missing permission, not the network
        raise _unreachable(location, error) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _unreachable(location: str, error: Exception) -> MachineLacks:
    return MachineLacks(
        f"no such folder here, and no hub can be reached to look for it ({_first_line(error) or type(error).__name__})",
        where=location,
        hint="check the path; for a hub id check the network, or set HF_ENDPOINT to a mirror",
    )
