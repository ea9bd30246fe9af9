"""Tensors from files of others: more than there is memory for, archives that lie, and files that are none."""

import pytest
import torch
from safetensors.torch import save_file

from refusals import FILE_KINDS, load_shards, load_weights, refusal_message, replace_with
from widemargin.io.errors import InputError


def test_more_weights_than_memory_are_one_line(tmp_path, monkeypatch):
    from widemargin.io import resources
    from widemargin.io.tensor_files import read_safetensors

    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    monkeypatch.setattr(resources, "available_memory", lambda: 3999)
    with pytest.raises(InputError, match=r"needs 4,000 bytes of memory, 3,999 are available"):
        read_safetensors(path)
    monkeypatch.setattr(resources, "available_memory", lambda: None)
    assert read_safetensors(path)["a"].shape == (1000,)


def test_a_long_list_of_members_is_not_read(tmp_path):
    from widemargin.io.tensor_files import TensorFileError, read_torch

    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.ones(3)}, path)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\5\6")
    data[place + 12 : place + 16] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(TensorFileError, match="1,073,741,824 bytes"):
        read_torch(path)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_weights_of_other_libraries_that_are_none_are_refused(tmp_path, kind):
    replace_with(tmp_path / "weights.pt", kind)
    assert "weights.pt" in refusal_message(load_weights, str(tmp_path / "weights.pt"), tmp_path=tmp_path)


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("name", ["index.json", "__0_0.distcp"])
def test_sharded_checkpoints_whose_files_are_none_are_refused(tmp_path, name, kind):
    from stress.checks.attack_pickles import save_shards

    save_shards(str(tmp_path / "shards"))
    replace_with(tmp_path / "shards" / name, kind)
    assert name in refusal_message(load_shards, str(tmp_path / "shards"), tmp_path=tmp_path)
