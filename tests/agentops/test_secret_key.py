import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentops.env import WrongSetting
from agentops.secret_key import development_key


def test_the_key_is_made_once_and_read_by_its_owner_only(tmp_path: Path) -> None:
    key = development_key(tmp_path / "data")
    assert len(key) >= 50
    assert development_key(tmp_path / "data") == key
    assert stat.S_IMODE((tmp_path / "data" / "secret_key").stat().st_mode) == 0o600


def test_first_starts_at_once_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(development_key, [tmp_path] * 8))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(WrongSetting, match="set AGENTOPS_DATA_DIR to a folder that you may write to, or set"):
        development_key(tmp_path / "data")
