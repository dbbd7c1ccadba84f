from forescale.frameworks.shell.near import near


def test_files_are_found_by_the_last_parts_of_their_path(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "one.sh").write_text("1")
    (tmp_path / "a" / "two.sh").write_text("2")
    (tmp_path / "a" / "c.json").write_text("3")
    text_of = near(folder / "run.sh")
    assert [text_of(name) for name in ("one.sh", "${DIR}/one.sh", "../two.sh", "a/c.json")] == [
        "1",
        "1",
        "2",
        "3",
    ]
    assert [text_of(name) for name in ("", ".", "x.sh", "one${X}.sh", "b")] == [None] * 5


def test_the_most_parts_of_a_path_count_before_the_nearest_folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "scripts" / "train.sh").write_text("itself")
    (tmp_path / "configs" / "train.sh").write_text("settings")
    text_of = near(tmp_path / "scripts" / "train.sh")
    assert (text_of("configs/train.sh"), text_of("other/train.sh")) == ("settings", "itself")


def test_nothing_outside_is_read(tmp_path):
    folder = tmp_path / "1" / "2" / "3" / "4"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "1" / "secret.json").write_text("x")
    (tmp_path / "1" / "2" / "plain").write_text("x")
    text_of = near(folder / "run.sh")
    paths = (
        str(tmp_path / "secret"),
        "../../../../secret",
        "../../../secret.json",
        "../../plain",
        "/etc/hostname",
    )
    assert [text_of(name) for name in paths] == [None] * 5
