"""Documents packed into samples: where attention stays, which targets count, and that nothing is lost."""

from fractions import Fraction

import numpy
import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.data import Dataset, Source, TokenFileWriter, open_dataset
from holmes_hpc.errors import DataError
from holmes_hpc.model import StageOptions, build_stage, token_loss
from holmes_hpc.model.attention import Documents
from holmes_hpc.values.targets import NOT_COUNTED

LENGTHS = (5, 1, 9, 3, 30, 2, 7, 4, 4, 12, 6)
S = 12


def source(packing, *, lengths=LENGTHS, counted=None, validation=10):
    ends = numpy.cumsum(lengths).astype(numpy.uint64)
    line = numpy.arange(int(ends[-1]))
    return Source("data.path=x", line[:-validation], line[-validation:], packing=packing, documents=ends,
                  counted=counted)


def dataset(packing, **changes) -> Dataset:
    return Dataset((source(packing, **changes),), (Fraction(1),), S, 256, "epoch")


def samples_of(data: Dataset):
    windows = data._cutters[0][0].windows
    return data.train_samples(0, 1, 0, windows, windows)


def owner(token: int) -> int:
    return int(numpy.searchsorted(numpy.cumsum(LENGTHS), token, side="right"))


@pytest.mark.parametrize("packing", ["documents", "whole", "single"])
def test_attention_and_targets_stay_inside_documents(packing):
    samples = samples_of(dataset(packing))
    for tokens, targets, lengths in zip(samples.tokens.tolist(), samples.targets.tolist(), samples.documents,
                                        strict=True):
        assert sum(lengths) <= S
        begin = 0
        for length in lengths:
            piece = tokens[begin:begin + length]
            assert piece == list(range(piece[0], piece[0] + length))
            assert len({owner(token) for token in piece}) == 1
            begin += length
        for place, target in enumerate(targets):
            same = place < begin and target != NOT_COUNTED
            if same:
                assert target == tokens[place] + 1
                assert owner(target) == owner(tokens[place])
        assert all(target == NOT_COUNTED for target in targets[begin:])


def test_causal_windows_cross_and_count_all():
    samples = samples_of(dataset("causal"))
    assert samples.documents is None
    assert samples.counted() == samples.targets.numel()


def test_whole_documents_are_all_there_once_and_long_ones_cut():
    data = dataset("whole")
    samples = samples_of(data)
    counted = samples.targets[samples.targets != NOT_COUNTED].tolist()
    line_end = len(data.sources[0].training)
    expected, begin = [], 0
    for length in LENGTHS:
        end = min(begin + length, line_end)
        expected += range(begin + 1, min(end, begin + S + 1))
        begin += length
    assert sorted(counted) == expected
    assert len(samples.tokens) < len(LENGTHS), "documents share samples"
    alone = samples_of(dataset("single"))
    assert sorted(alone.targets[alone.targets != NOT_COUNTED].tolist()) == expected


def test_validation_reads_each_whole_document_once_before_any_again():
    data = dataset("single", lengths=(13, *(4,) * 30), validation=92)
    begins = data.validation_samples(0, 46).tokens[:, 0].tolist()
    assert sorted(begins[:23]) == list(range(41, 133, 4))
    assert begins[23:] == begins[:23]
    for count in (4, 8, 16):
        assert numpy.diff(sorted([41, *begins[:count], 133])).max() < 2.7 * 92 / count, "spread over all of the part"
    assert [data.validation_size(wanted) for wanted in (5, 23, 64)] == [5, 23, 23]
    [said] = data.remarks(doubts=False, validation_samples=64)
    assert said.endswith("its validation part is 23 samples, fewer than the 64 that train.validation_samples=64 wants "
                         "of it; they are read")
    assert data.remarks(doubts=False, validation_samples=23) == []
    mixed = Dataset(data.sources * 2, (Fraction(1, 2),) * 2, S, 256)
    assert mixed.validation_size(64) == 64
    both = mixed.remarks(doubts=False, validation_samples=64)
    assert len(both) == 2
    assert all("the 32 that train.validation_samples=64 wants of it; they are read again" in said for said in both)
    assert mixed.remarks(doubts=False, validation_samples=46) == []
    assert dataset("causal").validation_size(64) == 64


@pytest.mark.parametrize("packing", ["causal", "documents", "whole", "single"])
def test_counts_are_known_without_reading_the_batch(packing):
    generator = numpy.random.default_rng(1)
    counted = (generator.random(sum(LENGTHS)) < 0.3).astype(numpy.uint8)
    for mask in (None, counted):
        data = dataset(packing, counted=mask)
        for order in ("epoch", "random"):
            each = Dataset(data.sources, data.weights, S, 256, order)
            for step in range(1, 20):
                assert each.counted(7, step, 5) == each.train_samples(7, step, 0, 5, 5).counted()


def test_masks_of_tokens_say_which_targets_count():
    counted = numpy.zeros(sum(LENGTHS), dtype=numpy.uint8)
    counted[[2, 8, 31]] = 1
    samples = samples_of(dataset("whole", counted=counted))
    assert sorted(samples.targets[samples.targets != NOT_COUNTED].tolist()) == [2, 8]  # 31 is beyond the cut
    assert samples_of(dataset("causal", counted=counted)).counted() == 3


def test_random_documents(rounds=30):
    generator = numpy.random.default_rng(3)
    for _ in range(rounds):
        lengths = generator.integers(0, 20, size=int(generator.integers(2, 30)))
        lengths[0] += 3
        lengths[-1] += 12
        ends = numpy.cumsum(lengths).astype(numpy.uint64)
        line = numpy.arange(int(ends[-1]))
        for packing in ("documents", "whole", "single"):
            each = Source("x", line[:-10], line[-10:], packing=packing, documents=ends)
            data = Dataset((each,), (Fraction(1),), int(generator.integers(1, 14)), 1000, "epoch")
            if not data._cutters[0][0].windows:
                continue
            samples = samples_of(data)
            assert samples.counted() == data.counted(0, 1, len(samples.tokens))
            real = samples.targets != NOT_COUNTED
            assert torch.equal(samples.targets[real], samples.tokens[real] + 1)


def test_the_core_of_documents_is_that_of_each_alone():
    torch.manual_seed(0)
    lengths = ((4, 3, 5), (7, 2), (12,))
    packed = Documents(lengths, S)
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]
    assert packed.positions[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 0, 0, 0]
    query = torch.randn(3, S, 4, 8, requires_grad=True)
    key, value = torch.randn(3, S, 2, 8), torch.randn(3, S, 2, 8)
    found = packed.attend(query, key, value)
    assert not found[1, 9:].any(), "padding attends to nothing"
    mask = torch.zeros(S, S, dtype=torch.bool)
    for begin, end in ((0, 4), (4, 7), (7, 12)):
        mask[begin:end, begin:end] = torch.ones(end - begin, end - begin).tril().bool()
    wide = torch.nn.functional.scaled_dot_product_attention(
        *(each[:1].transpose(1, 2) for each in (query, key, value)), attn_mask=mask, enable_gqa=True)
    assert torch.allclose(found[:1], wide.transpose(1, 2).flatten(2), atol=1e-6)


@pytest.mark.parametrize("model", ["gpt_tiny", "llama_tiny"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_packed_documents_have_the_losses_and_gradients_of_unpacked_ones(model, recompute):
    architecture = Architecture.from_config(compose(["+cluster=laptop", f"model={model}", "model.num_layers=2",
                                                     f"model.sequence_length={S}"]).model)
    found = []
    for packing in ("whole", "single"):
        samples = samples_of(dataset(packing))
        stage = build_stage(architecture, 0, 2, first=True, last=True, seed=1,
                            options=StageOptions(recompute=recompute))
        logits = stage(samples.tokens, Documents(samples.documents, S))
        loss = token_loss(logits, samples.targets, architecture.vocab_size, counted=samples.counted())
        loss.backward()
        found.append((loss.item(), {name: each.grad for name, each in stage.named_parameters()}))
    (packed, packed_gradients), (single, single_gradients) = found
    assert packed == pytest.approx(single, rel=1e-6)
    for name, gradient in packed_gradients.items():
        assert torch.allclose(gradient, single_gradients[name], rtol=1e-4, atol=1e-7), name


def test_a_micro_batch_of_which_nothing_counts_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = token_loss(logits, torch.full((2, 3), NOT_COUNTED), 5, counted=0)
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


def token_file(path, lengths, counted=None):
    generator = numpy.random.default_rng(5)
    with TokenFileWriter(path, 256, counts=counted is not None) as writer:
        for length in lengths:
            marks = None if counted is None else generator.random(length) < counted
            writer.write(generator.integers(0, 256, length), marks)
            writer.end_document()
    return path


def open_file(path, **data):
    config = compose(["+cluster=laptop", "data=tokens", f"data.path={path}", "model.sequence_length=16",
                      *(f"data.{name}={value}" for name, value in data.items())])
    return open_dataset(config.data, Architecture.from_config(config.model))


def test_a_token_file_keeps_what_counts(tmp_path):
    path = token_file(tmp_path / "a.tokens", [20] * 30, counted=0.5)
    data = open_file(path, packing="whole", validation_fraction=0.1)
    assert len(data.sources[0].training) == 540
    assert 0 < data.counted(1, 1, 4) < 64
    assert data.counted(1, 1, 4) == data.train_samples(1, 1, 0, 4, 4).counted()
    assert open_file(path).fingerprint() != open_file(path, packing="documents").fingerprint()
    damaged = path.read_bytes()[:-1]
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="cut short"):
        open_file(path)


def test_samples_that_cross_documents_are_said_once_and_only_where_nobody_chose(tmp_path):
    path = token_file(tmp_path / "a.tokens", [20] * 30)
    assert "run across the ends of its 30 documents" in "".join(open_file(path).remarks(doubts=False))
    for packing in ("causal", "documents", "whole"):
        assert "across" not in "".join(open_file(path, packing=packing).remarks(doubts=False))


def test_one_document_is_not_enough_for_whole_documents_in_both_parts(tmp_path):
    path = token_file(tmp_path / "a.tokens", [900])
    with pytest.raises(DataError, match=r"no document of two tokens or more for validation.*data\.packing=whole"):
        open_file(path, packing="whole")
