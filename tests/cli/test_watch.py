from __future__ import annotations


def line(step: int, seconds: float) -> str:
    return f" iteration {step}/ 100 | elapsed time per iteration (ms): {1e3 * seconds} | lm loss: 1.0E+00 |"


def test_the_command_and_its_exit_code(forescale, tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line(n, 10.0)}\n" for n in range(1, 60)))
    question = [
        "llama-3.1-8b",
        "--cluster",
        "h100-sxm",
        "--devices",
        "8",
        "--seq-len",
        "8192",
        "--global-batch-size",
        "64",
        "--zero",
        "3",
    ]
    assert forescale("watch", *question, "--log", path, "--no-follow").code == 0
    assert forescale("watch", *question, "--log", path, "--no-follow", "--fail-below", "0.8").code == 3
    assert "MFU" not in forescale("watch", *question, "--log", path, "--no-follow").out
    path.write_text("".join(f"{line(n, 1.0)}\n" for n in range(1, 12)))
    assert "(MFU " in forescale("watch", *question, "--log", path, "--no-follow").out
    for arguments, error in (
        (("--log", tmp_path / "none"), "not_found"),
        (("--log", path, "--tensorboard", tmp_path), "conflicts"),
        (("--tensorboard", tmp_path), "not_found"),
        (("--wandb-dir", tmp_path), "not_found"),
    ):
        ran = forescale("watch", *question, *arguments)
        assert (ran.code, ran.refused.split()[0]) == (2, error)
