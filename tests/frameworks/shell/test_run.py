"""Scripts are followed as bash runs them: where bash is there, it is asked."""

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.shell import follow, is_unset

SAID = [
    ("A=3; say $A ${A}x \"$A y\" '$A'", ["3", "3x", "3 y", "$A"]),
    ("A=${A:-4}; B=${A:+yes}; C=${NOT-none}; say $A $B $C", ["4", "yes", "none"]),
    (': "${A:=4}"; : ${A:=5}; say $A', ["4"]),
    ('A=(--x "--y 1"); B="${A[*]}"; say $B', ["--x", "--y", "1"]),
    ("A=(--x 1 'a b'); A+=(--y); say ${A[@]}", ["--x", "1", "a", "b", "--y"]),
    ('A=(--x "a b"); B=("${A[@]}" --z); say "${B[@]}"', ["--x", "a b", "--z"]),
    ('A="--x 1 \\\n  --y 2"; A+=" --z"; say $A', ["--x", "1", "--y", "2", "--z"]),
    ('A="--x 1"; say "$A"', ["--x 1"]),
    ("A=(\n --x 1 # ( a comment\n --y\n); say ${A[@]}", ["--x", "1", "--y"]),
    ("N=2; G=8; say $((N * G)) $(($N+1)) $((-N/2))", ["16", "3", "-1"]),
    ("if [ 1 = 2 ]; then say no; elif [[ a == a* && -n x ]]; then say yes; else say other; fi", ["yes"]),
    ("X=3; if [[ $X -gt 2 ]] && [ ! -z $X ]; then say in; fi", ["in"]),
    ("[ -z '' ] && say empty || say full", ["empty"]),
    ("case b2 in a) say a;; b*|c) say b;; *) say rest;; esac", ["b"]),
    ("for x in 1 2 3; do A=\"$A $x\"; done; say $A", ["1", "2", "3"]),
    ("f() { say in $A; }; A=1; f", ["in", "1"]),
    ("function f { say out; }\nf", ["out"]),
    ("D=$([ a = a ] && echo --det); say $D end", ["--det", "end"]),
    ("say a\\ b c\\\n d # e", ["a b", "c", "d"]),
    ("say a 2>&1 > /dev/null; say", ["a"]),
    ("A=1; { say $A; } || say no", ["1"]),
    ("say ${NOT:=5} $(echo `echo x`)", ["5", "x"]),
    ('eval "say a b"', ["a", "b"]),
    ("say $((2 ** 22)) $((2 ** 0))", ["4194304", "1"]),
    ("A=TrUe; say $(echo $A | tr '[:upper:]' '[:lower:]') $(echo $A | tr '[:lower:]' '[:upper:]')", ["true", "TRUE"]),
    ("T=4; say $(( T > 1 ? 2 : 0 )) $(( ($T == 4) && 0 )) $((3 % 2))", ["2", "0", "1"]),
    ("for c in 4,1,x 2; do IFS=, read -r A B C <<< \"$c\"; done; read -r D E <<< 'p q r'; say $A-$B-$C $D $E", ["2--", "p", "q", "r"]),
    ("C=8,2,1; IFS=',' read -ra L <<< $C; say ${L[1]} ${#L[@]}", ["2", "3"]),
    ("say $(echo 6 | sed 's/6/7/') $(basename a/b.sh .sh)", ["7", "b"]),
    ("A=2; B=1; if (( A > 1 )); then say a; fi; if ((B > 1)) || (( B*2 == 3 )); then say b; else say c; fi", ["a", "c"]),
    ("A=3; (( A == 3 )) && say yes; ((A==2)) && say no", ["yes"]),
    ("(say a; (say b))", ["a", "b"]),
    ("A=(x y z); say ${#A[@]} ${A[1]}", ["3", "y"]),
    ("A=(x y z); i=1; say ${A[$i]} ${A[i+1]} ${A[-1]} ${A[7]}", ["y", "z", "z"]),
    ("A=(8 16); B=(1 2); for i in ${!A[@]}; do say ${A[$i]} $((${A[i]} * ${B[$i]})); break; done", ["8", "8"]),
    ("A=--x=a=b; say ${A#*=} ${A##*=} ${A%=*} ${A%%=*} ${A#no}", ["a=b", "b", "--x=a", "--x", "--x=a=b"]),
    ("A=8B; B=BF16; say ${A%B} ${B,,} ${A/8/70} ${B:2} ${B:0:2} ${A//[0-9]/x} ${B^}", ["8", "bf16", "70B", "16", "BF", "xB", "BF16"]),
    ("A=2; (A=3); f() { local A=4 B=5; A=6; }; f; say $A ${B-no}", ["2", "no"]),
    ("A=2; ((A++)); let A+=1; ((A *= 2)); let B=A-1; (( C = A > 7 ? 1 : 2 )); say $A $B $C", ["8", "7", "1"]),
    ("f() { say $(( $1 * 4 )) $(( $(echo $2) + 1 )); }; f 3 5; printf -v D %d 9; say $D", ["12", "6", "9"]),
    (r"say $(printf -- '--a\n%s\n' 4) $(printf '%s-%d%% ' x 1 y 2)", ["--a", "4", "x-1%", "y-2%"]),
    ("A=0; while [ $A -lt 3 ]; do A=$((A+1)); done; until [ $A -ge 5 ]; do A=$((A+1)); done; say $A", ["5"]),
    ("for x in 1 2 3 4; do [ $x = 2 ] && continue; [ $x = 4 ] && break; say $x; done", ["1", "3"]),
    ("A=3; N=A; say ${!N} ${A:-5} ${#A}", ["3", "3", "1"]),
    ("A=(a.x b.x); say ${A[@]%.x}; B=x-y; C=-; say ${B%$C*} ${B/x/}", ["a", "b", "x", "-y"]),
    ("A=2; if [ $A -gt 1 ]; then say a; exit 1; fi; say b", ["a"]),
    ("f() { [ $1 = 1 ] && return 1; say no; }; f 1 || say yes; (exit 3); say $(exit 4) end; f 2", ["yes", "end", "no"]),
    ("case a in a) say a; exit;; esac; say b", ["a"]),
    ("[ a = b ] || { say a; exit 2; }; say b", ["a"]),
    ("A=1; B=2; C=3; unset A; unset -v B; say ${A:-none} ${B:-none} $C", ["none", "none", "3"]),
]  # fmt: skip


def words(text, **variables):
    commands = [command[1:] for command in follow(text, variables, "run.sh").commands if command[0] == "say"]
    return [word for command in commands for word in command]


@pytest.mark.parametrize(("text", "said"), SAID)
def test_what_is_said(text, said):
    assert words(text) == said


@pytest.mark.parametrize(("text", "said"), SAID)
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_says_the_same(text, said):
    script = 'say() { for w in "$@"; do printf "%s\\0" "$w"; done >&3; }\n' + text
    run = subprocess.run(["bash", "-c", f"exec 3>&1\n{script}"], capture_output=True, text=True, check=False)
    assert run.stdout.split("\0")[:-1] == said


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('run="python a.py --x 1"; srun -N 2 sh -c "${run}"', ["srun", "-N", "2", "sh", "python", "a.py", "--x", "1"]),
        ("A=1\nsbatch <<EOF\n#SBATCH --nodes=4 # of them\nsrun python a.py $A\nEOF\nexit",
         ["sbatch", "--nodes=4", "srun", "python", "a.py", "1"]),
        ("torchrun ${UNSET} a.py", ["torchrun", "${UNSET}", "a.py"]),
        ("python a.py $1 \"$@\"", ["python", "a.py", "${1}"]),
        ("while [ $# -gt 0 ]; do python b.py; shift; done; python a.py", ["python", "a.py"]),
        ("if [ ! -d x ]; then python a.py; fi", ["python", "a.py"]),
        ("A=\"--x <PATH TO X> --y <DIR>/z --fp16\"\nsh -c \"python a.py $A\" <in >out",
         ["sh", "python", "a.py", "--x", "<PATH TO X>", "--y", "<DIR>/z", "--fp16"]),
    ],
)  # fmt: skip
def test_commands(text, command):
    assert command in follow(text, {}, "run.sh").commands


def test_other_scripts_are_followed_with_its_variables():
    files = {"./common.sh": "B=2", "job.sh": "#SBATCH --ntasks-per-node=8\npython a.py $A $B $C"}
    result = follow(". $(pwd)/common.sh; A=1; sbatch --nodes=2 job.sh", {"C": "3"}, "run.sh", files.get)
    assert result.commands == [
        ["sbatch", "--nodes=2", "--ntasks-per-node=8", "python", "a.py", "1", "2", "3"]
    ]


def test_what_the_caller_says_comes_before_the_script():
    assert words("A=1; say $A $B", A="5", B="6") == ["5", "6"]


def test_a_script_that_only_sets_variables():
    script = follow('export ARGS=" --num-layers ${N:-2} "; X=(--a b)', {}, "run.sh")
    assert script.variables == {"ARGS": [" --num-layers 2 "], "X": ["--a", "b"]}
    assert not script.commands


def test_unset():
    assert is_unset("${NAME}")
    assert not is_unset("x${NAME}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("say 'a", "not whole shell text: no closing '"),
        ('say "a', 'no closing "'),
        ("say ${A", "no closing }"),
        (f"[[ {' && '.join(['a == a'] * 500)} ]]", "too_large a test"),
        ("A=(a", r"no closing \)"),
        ("x" * (2**20 + 1), "too_large it"),
        ("A=aaaaaaaaaaaaaaaa\n" + "A=$A$A$A$A\n" * 16, "too_large the text of its variables"),
        ("for a in 1 2 3 4 5 6 7 8 9; do " * 6 + "say" + "; done" * 6, "too_large it"),
    ],
)
def test_refused(text, problem):
    with raises(ReaderError, problem):
        follow(text, {}, "run.sh")


def arithmetic(text):
    return follow(f"say {text}", {}, "run.sh").commands[0][1:]


def test_arithmetic_is_that_of_64_bits():
    assert arithmetic("$((-7 / 2)) $((-7 % 2)) $((7 / -2)) $((2 * 3 - 1))") == ["-3", "-1", "-3", "5"]
    assert arithmetic(f"$(({'9*' * 300}9))") == [f"$(({'9*' * 300}9))"]


def test_substitutions_spend_the_budget_of_the_script():
    inside = "for i in " + "w " * 40 + "; do x=$(for j in " + "w " * 600 + "; do echo $j; done); done"
    with raises(ReaderError, "too_large it"):
        follow(inside, {}, "run.sh")
    nested = 'a=("' + "w" * 1000 + '"); ' + "for i in " + "w " * 9000 + '; do b=$(echo "${a[@]}"); done'
    with raises(ReaderError, "too_large it"):
        follow(nested, {}, "run.sh")


def test_an_array_that_doubles_itself():
    text = "a=(1); " + 'a+=("${a[@]}"); ' * 19 + "say ${#a[@]}"
    assert len(follow(text, {}, "run.sh").variables["a"]) == 2**19


@pytest.mark.parametrize(
    "text", ["f() { f; }; f", "eval eval eval $A", "(" * 2000, "if " * 500, "$(" * 50 + ")" * 50]
)
def test_circles_and_depth_end(text):
    try:
        follow(text, {}, "run.sh")
    except ReaderError as error:
        assert "run.sh" in str(error)


@settings(deadline=None)
@given(st.lists(st.sampled_from([*"abA$'\"`\\ \n;&|(){}[]<>=#", "${", "$(", "$((", "if ", "then ", "fi", "for ",
                                 "do ", "done", "case ", "esac", "A=", "A+=(", "<<E\n", " -c "]), max_size=40))  # fmt: skip
def test_nothing_else_is_raised(parts):
    with contextlib.suppress(ReaderError):
        follow("".join(parts), {"A": "x y"}, "run.sh")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("say $1 ${2} $# $@", "a b", ["a", "b", "2", "a", "b"]),
        ("shift; say $1", "a b", ["b"]),
        ("f() { say $1 $#; }; f x; say $1", "a", ["x", "1", "a"]),
        ("bash inner.sh 2", "a", ["2"]),
        ("source inner.sh", "a", ["a"]),
        ("say ${1:-d} ${3:-d}", "a", ["a", "d"]),
        (
            "while [[ $# -gt 0 ]]; do case $1 in --x) X=$2; shift 2;; *) shift;; esac; done; say $X",
            "--y --x 3",
            ["3"],
        ),
        ('while [ "$1" != "" ]; do A="$A $1"; shift; done; say $A', "1 2", ["1", "2"]),
        ("while [ $# -gt 0 ]; do say once; done", "a", ["once"]),
        ("while true; do say no; done; say yes", "a", ["yes"]),
        ("while IFS=, read -r n m; do say once; done <<< 1,2", "a", ["once"]),
        ("i=0; while (($i < 3)); do say once; i=$((i + 1)); done", "a", ["once"]),
    ],
)
def test_arguments_of_a_script(text, arguments, said):
    script = follow(text, {}, "run.sh", {"inner.sh": "say $1"}.get, arguments.split())
    assert [word for command in script.commands for word in command[command.index("say") + 1 :]] == said


def test_a_script_that_is_not_there_is_named():
    assert follow("bash train.sh 2", {}, "run.sh").missing == ["train.sh"]


def test_files_that_a_script_writes():
    script = follow('A=3\ncat <<E > $A.json\n{"a": $A}\nE\necho b >> 3.json', {}, "run.sh")
    assert script.files == {"3.json": '{"a": 3}\nb\n'}


def test_a_script_that_is_written_is_read():
    text = "cat > job.sh <<E\n#!/bin/bash\nsay written\nE\nsbatch job.sh"
    assert any("written" in command for command in follow(text, {}, "run.sh").commands)


def test_uses_of_variables_that_nothing_sets():
    unset = follow(
        "T=$1; if [ $T = a ] || [ $T == b ]; then say; fi; case $U in x|y) say;; *) say;; esac", {}, "x"
    ).unset
    assert (unset["1"].names, unset["1"].choices) == (["T"], ["a", "b"])
    assert unset["U"].choices == ["x", "y"]


def test_options_that_a_comment_cuts_off_are_refused():
    assert words("say --a 1 \\\n  --b 2 \\") == ["--a", "1", "--b", "2"]
    for cut in ("say --a 1 \\\n  # --c 3 \\\n  --b 2", "say --a 1 \\ \n  --b 2"):
        with raises(ReaderError, "wrong_format --b"):
            words(cut)


def test_values_of_a_table_next_to_the_script():
    table = {"sizes.yaml": "training:\n  seq_length: 512\n"}
    text = 'D="$(cd "$(dirname "$0")" && pwd)"; say $D/x $(yq .training.seq_length sizes.yaml)'
    (command,) = follow(text, {}, "run.sh", table.get).commands
    assert command == ["say", "./x", "512"]
    (command,) = follow("N=$(nvidia-smi -L); say $N", {}, "run.sh").commands[-1:]
    assert command == ["say", "${N}"]


def test_a_command_inside_a_container():
    assert follow('docker exec box bash -lc "say --a 1"', {}, "run.sh").commands[-1][-3:] == [
        "say",
        "--a",
        "1",
    ]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("say $[8/(2*2)]", ["say", "2"]),
        ("say $(which swift)", ["say", "swift"]),
        ("srun bash -c 'say \"$@\"' _ a b", ["srun", "bash", "say", "a", "b"]),
        ("bash -c 'say $1' first second", ["bash", "say", "second"]),
    ],
)
def test_old_arithmetic_paths_of_programs_and_arguments_of_a_quoted_script(text, command):
    assert follow(text, {}, "run.sh").commands[-1] == command


def test_what_a_command_prints_is_one_word():
    text = "A=(--x $(own -e 'a b' sh -c 'x y') --y 1)\nsay ${A[@]}\nB=`date +\"%Y %H\"`\nsay $B"
    first, second = follow(text, {}, "x").commands
    assert (first[0], first[1], first[-2:], len(first)) == ("say", "--x", ["--y", "1"], 5)
    assert second == ["say", "${B}"]


def test_a_script_behind_mpirun_or_in_a_folder_that_is_not_known():
    texts = {"inner.sh": "run $1 --x", "other.sh": "run other"}
    text = "mpirun -n 8 -mca a b -x PATH bash inner.sh $LP\nbash ${WORK_DIR}/other.sh"
    commands = follow(text, {}, "x", texts.get).commands
    assert commands[0][-3:] == ["run", "${LP}", "--x"]
    assert commands[0][:3] == ["mpirun", "-n", "8"]
    assert commands[1] == ["bash", "run", "other"]


@pytest.mark.parametrize(
    ("piped", "pattern", "taken"),
    [
        ("--scale 1 --fake", "-q -- --fake", "1"),
        ("--scale 1", "-q -- --fake", "8"),
        ("$OPEN --scale", "-q scale", "1"),
        ("$OPEN", "-q scale", "8"),
        ("--scale", "-q '^--s.*'", "8"),
    ],
)
def test_grep_in_what_is_piped(piped, pattern, taken):
    text = f'A="{piped}"\nN=8\nif echo "$A" | grep {pattern}; then N=1; fi\ntorchrun $N\n'
    assert ["torchrun", taken] in follow(text, {}, "run.sh").commands


def test_a_configuration_that_a_script_edits():
    table = "size: 16\nname: HERE # HERE\n"
    text = "C=$(mktemp /tmp/c-XXXX.yaml)\nsed -e 's|HERE|there|' c.yaml > $C\n"
    text += (
        "S=$(grep '^size' c.yaml | awk '{print $2}')\necho \"steps: $((64 / S))\" >> $C\necho -n end >> $C\n"
    )
    script = follow(text, {}, "run.sh", {"c.yaml": table}.get)
    assert script.files == {"/tmp/c-XXXX.yaml": "size: 16\nname: there # HERE\nsteps: 4\nend"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo a:b:c | awk -F: '{print $3}'", "c"),
        ("echo a:b | awk -F ':' '{ print $1; }'", "a"),
        ("echo a b | awk '{print $9}'", ""),
        ("grep -E 'size' c.yaml", "size: 16"),
        ("echo size 3 | grep size", "size 3"),
    ],
)
def test_lines_and_columns(command, said):
    script = follow(f"X=$({command})\nsay $X", {}, "run.sh", {"c.yaml": "name: a\nsize: 16\n"}.get)
    assert script.commands == [["say", *said.split()]]


@pytest.mark.parametrize(
    "command", ["awk '{print $1}'", "grep a.*b c.yaml", "grep none c.yaml", "mktemp", "yq .a"]
)
def test_what_is_not_followed_is_one_word(command):
    script = follow(f"X=$({command})\nsay $X", {}, "run.sh", {"c.yaml": "name: a\n"}.get)
    assert script.commands[-1] == ["say", "${X}"]


def test_arguments_from_a_place_on_and_devices_of_each_command():
    script = follow(
        'N=2\nsay "${@:2}" end\nexport CUDA_VISIBLE_DEVICES=0,1\nsay\nCUDA_VISIBLE_DEVICES=3 say',
        {},
        "run.sh",
        arguments=["a", "b"],
    )
    assert script.commands[0] == ["say", "b", "end"]
    assert [item["CUDA_VISIBLE_DEVICES"] for item in script.environments] == ["", "0,1", "3"]
    assert follow('say "${@:2}" end', {}, "run.sh").commands == [["say", "end"]]


DOUBTED = (
    "lacks=0; if [ ! -f data ]; then lacks=1; fi; if [ $lacks -ne 0 ]; then exit 1; fi; say on",
    "if [ ! -f data.bin ]; then exit 1; fi; say on",
    "[ -z $NOT_SET ] && exit 1; say on",
    "IMAGE=; if [ -z \"$IMAGE\" ] || [ $IMAGE == '' ]; then exit 1; fi; [ -z $IMAGE ] && exit 1; say on",
    "if [ $# -lt 2 ]; then exit 1; fi; say on",
    "if [[ $HOSTNAME == a* ]]; then say on; else exit 1; fi; say on",
    "case $MODE in a) say on;; *) exit 1;; esac; say on",
    "python check.py || exit 1; say on",
    "if ! command -v uv; then exit 1; fi; say on",
    "while read -r line; do exit 1; done < list; say on",
    "f() { say on; return; }; [ -d out ] || f; say on",
)


@pytest.mark.parametrize("text", DOUBTED)
def test_exit_under_a_condition_that_is_not_known_is_not_followed(text):
    assert words(text)[-1:] == ["on"]
    assert not follow(text, {}, "run.sh").stopped


COUNTED = (
    "A=0; while read -r line; do A=$((A+1)); done < hosts; say $A",
    "A=0; while (( A < 3 )); do A=$((A+1)); done; say $A",
    "A=1; for ((i=0; i<3; i++)); do A=$((A*2)); done; say $A",
    "A=8; while [ $FREE -lt 3 ]; do A=$((A/2)); done; say $A",
    "A=; while read -r line; do A+=x; done < hosts; say $A",
    "A=1; (( A += NOT_SET )); say $A",
)


@pytest.mark.parametrize("text", COUNTED)
def test_what_each_round_of_an_unknown_loop_changes_is_not_known(text):
    assert words(text) == ["${A}"]


def test_arguments_in_a_sum_are_not_their_numbers():
    assert words("say $(( $1 * 8 ))") == ["$(( $1 * 8 ))"]
    assert words("N=4; say $(( $N * 8 ))") == ["32"]


def test_wrapper_that_decides_how_to_start_its_arguments_is_passed_over():
    wrapper = "APP=$@\ncase $LOCAL_RANK in 0) numactl $APP;; esac\n"
    script = follow("bash bind.sh 0 python pretrain_gpt.py --bf16", {}, "run.sh", {"bind.sh": wrapper}.get)
    assert script.commands[-1][-3:] == ["python", "pretrain_gpt.py", "--bf16"]
    direct = follow("bash bind.sh python pretrain_gpt.py", {}, "run.sh", {"bind.sh": 'exec "$@"\n'}.get)
    assert [command[-2:] for command in direct.commands] == [["python", "pretrain_gpt.py"]]


def test_script_that_ends_itself_names_its_exit():
    text = (
        'TP=2; if [ $TP -gt 1 ]; then echo "TP needs EP"; exit 3; fi; python pretrain_gpt.py --num-layers 2'
    )
    script = follow(text, {}, "run.sh")
    assert script.stopped == "exit 3 after: TP needs EP"
    assert script.commands == []
    with raises(ReaderError, "wrong_format a script that trains"):
        script.refuse_stopped("run.sh")
    assert follow(text, {"TP": "1"}, "run.sh").stopped == ""


@pytest.mark.parametrize(
    "test",
    [
        "[ ${#LOST[@]} -gt 0 ]",
        "(( COUNT > 0 ))",
        "[ $COPY -gt 0 ]",
        "[ $ARGS -lt 1 ]",
        "[[ ${#LOST} -gt 0 ]]",
    ],
)
def test_what_only_a_file_decides_ends_no_script(test):
    text = f"""
    ARGS=$#
    for f in a.bin b.bin; do if [ ! -f $f ]; then LOST+=($f); COUNT=2; fi; done
    COPY=$COUNT
    if {test}; then echo lost; exit 1; fi
    python train.py
    """
    script = follow(text, {}, "run.sh")
    assert (script.commands[-1], script.stopped) == (["python", "train.py"], "")


@pytest.mark.parametrize(
    ("text", "started"),
    [
        ("cd a; cd b/; bash run.sh", "a/b/run.sh"),
        ("cd a\ncd ..\nbash run.sh", "run.sh"),
        ("(cd a); bash run.sh", "run.sh"),
        ("cd /data/a; bash run.sh", "run.sh"),
        ("cd a; cd $NOT; bash run.sh", "run.sh"),
    ],
)
def test_scripts_in_the_folder_that_cd_went_to(text, started):
    scripts = {"a/b/run.sh": "say a/b/run.sh", "run.sh": "say run.sh"}
    assert follow(text, {}, "x", scripts.get).commands[-1] == ["bash", "say", started]


@pytest.mark.parametrize(
    "text",
    [
        "T=$(cat <<EOF\nA=2\npython train.py --x \\$A\nEOF\n)\necho \"$T\" | tr -d '\\r' | kubectl exec -i pod -- /bin/bash\n",
        'COMMAND="python train.py --x 2" sbatch --nodes=2 ray.sub\n',
    ],
)
def test_a_script_that_is_piped_or_handed_over_is_followed(text):
    words = [command for command in follow(text, {}, "run.sh").commands if "train.py" in command]
    assert [command[-3:] for command in words] == [["train.py", "--x", "2"]]
