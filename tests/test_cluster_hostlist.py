from pathlib import Path

import pytest

from holmes_hpc.cluster import HostlistError, expand_hostlist


def table():
    lines = (Path(__file__).parent / "data" / "hostlists.tsv").read_text().splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("text", "names"), table())
def test_names_are_those_of_slurm(text, names):
    if names == "REFUSED":
        with pytest.raises(HostlistError) as caught:
            expand_hostlist(text)
        assert "node list" in str(caught.value)
    else:
        assert ",".join(expand_hostlist(text)) == names


def test_the_table_is_whole():
    refused = [text for text, names in table() if names == "REFUSED"]
    assert len(table()) == 66
    assert len(refused) == 14


def test_no_names():
    assert expand_hostlist("") == []
    assert expand_hostlist(" ,\n") == []


def test_a_trailing_newline_of_a_command_is_no_part_of_a_name():
    assert expand_hostlist("node[1-2]\n") == ["node1", "node2"]


def test_four_brackets_resolve_from_the_right_and_run_in_the_last():
    names = expand_hostlist("a[1-2]b[1-2]c[1-2]d[1-2]")
    assert names[:5] == ["a1b1c1d1", "a1b1c1d2", "a2b1c1d1", "a2b1c1d2", "a1b2c1d1"]
    assert names[8] == "a1b1c2d1"
    assert len(set(names)) == 16


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("node[3-1]", "goes down"),
        ("node[1-3", "never closed"),
        ("node1]", "']' without '['"),
        ("n[1[2]]", "nested"),
        ("(null)", "no nodes yet"),
        ("g[1-65537]", "too large"),
        ("n[a-c]", "'a-c'"),
        ("node[1-3]/2", "'/'"),
        ("n[0-65535]m[0-65535]", "at most"),
    ],
)
def test_the_message_says_what_is_wrong(text, word):
    with pytest.raises(HostlistError, match="node list") as caught:
        expand_hostlist(text)
    assert word in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_the_largest_range():
    names = expand_hostlist("n[00001-65536]")
    assert (len(names), names[0], names[-1]) == (65536, "n00001", "n65536")


def test_only_ascii_digits_are_numbers():
    with pytest.raises(HostlistError):
        expand_hostlist("node[١-٣]")
