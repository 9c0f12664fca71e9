"""Number of free file descriptors."""

import os
import resource

import pytest

from supervisor.processes import descriptors


@pytest.mark.parametrize("listed", [False, True])
def test_each_open_descriptor_is_one_less_that_is_free(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel tells the number of open descriptors, or they must be listed."""
    if listed:
        monkeypatch.setattr(descriptors, "_LINUX_LIST", "")
    before = descriptors.free_descriptors()
    pipe = os.pipe()
    try:
        after = descriptors.free_descriptors()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert before is not None
        assert after is not None
        assert before - after == 2
        assert most - after == len(os.listdir(descriptors._LISTED)) - 1  # the listing counts its own
    finally:
        for fd in pipe:
            os.close(fd)
