"""Devices that launchers and schedulers of jobs start a program on."""

import pytest

from forescale.frameworks.shell import devices_of, follow, launch_of


def devices(text, hosts=None):
    [command] = follow(text, {}, "run.sh").commands
    result = devices_of(launch_of(command[: command.index("a.py")]), (hosts or {}).get)
    return None if result is None else (result.count, *result.options)


@pytest.mark.parametrize(
    ("text", "count", "options"),
    [
        (
            "#SBATCH --nodes=16\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
            "A=(--nproc-per-node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES)\nsrun bash -c \"torchrun ${A[@]} a.py\"",
            64, ("--nnodes 16", "--nproc-per-node 4"),
        ),
        ("#SBATCH -N 16 --ntasks-per-node=1 --gpus-per-node=a100:4\nsrun python a.py", 64, ("-N 16", "--gpus-per-node a100:4")),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun torchrun --nnodes=$UNSET --nproc_per_node=gpu a.py", 32, ("--nodes 4", "--gres gpu:8")),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun python a.py", 16, ("--nodes 2", "--ntasks-per-node 8")),
        ("#SBATCH --ntasks=64\nsrun python a.py", 64, ("--ntasks 64",)),
        (
            "#SBATCH --nodes 2\n#SBATCH --ntasks-per-node 1\n#SBATCH --gpus-per-task 4\n"
            "srun deepspeed --num_gpus ${SLURM_GPUS_ON_NODE} --hostfile h a.py", 8, ("--nodes 2", "--num_gpus 4"),
        ),
        ("#SBATCH --nodes=4\nsrun -n 24 python a.py", 24, ("-n 24",)),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nmpirun -np $SLURM_NTASKS python a.py", 32, ("-np 32",)),
        ("#SBATCH --nodes=8\nG=8\nmpirun -np $(($SLURM_JOB_NUM_NODES * G)) --npernode $G -x PATH python a.py", 64, ("-np 64",)),
        ("#PBS -l select=4:ncpus=96:ngpus=8\nmpirun -npernode 8 python a.py", 32, ("select 4", "-npernode 8")),
        ("#PBS -l nodes=3,gpus=4 -l walltime=1:0:0\npython a.py", 12, ("nodes 3", "gpus 4")),
        ("deepspeed --num_gpus 8 --num_nodes 2 a.py", 16, ("--num_nodes 2", "--num_gpus 8")),
        (
            "srun --nodes=2 --gres=gpu:4 --ntasks-per-node=1 deepspeed a.py",
            4,
            ("--gres gpu:4", "1 node (deepspeed without --hostfile)"),
        ),
        ("accelerate launch --num_processes 16 --num_machines 2 a.py", 16, ("--num_processes 16",)),
        ("torchrun --nproc-per-node 8 a.py", 8, ("--nproc-per-node 8",)),
        ("torchrun --standalone --nproc-per-node=4 --nnodes=1:2 a.py", 8, ("--nnodes 1:2", "--nproc-per-node 4")),
        ("python -m torch.distributed.run --nproc_per_node 8 --nnodes 4 a.py", 32, ("--nnodes 4", "--nproc_per_node 8")),
    ],
)  # fmt: skip
def test_devices(text, count, options):
    assert devices(text) == (count, *options)


def test_a_hostfile_counts_its_slots():
    hosts = {"hosts": "# hosts\nn1 slots=8\nn2 slots=8 # two\n"}
    assert devices("mpirun --hostfile hosts python a.py", hosts) == (16, "--hostfile hosts")
    assert devices("mpirun --hostfile missing python a.py", hosts) is None
    assert devices("deepspeed --hostfile hosts a.py", hosts) == (16, "--hostfile hosts")


@pytest.mark.parametrize("text", ["python a.py", "mpirun -np $N python a.py", "srun --nodes=2 python a.py"])
def test_what_is_not_said_is_not_known(text):
    assert devices(text) is None


def test_variables_of_slurm_follow_from_its_options():
    text = (
        "#!/bin/bash\n#SBATCH -N 4 --ntasks-per-node=8\n#SBATCH --gpus-per-node=8 # all\n#SBATCH -c 12\n"
        "say $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS $SLURM_GPUS_PER_NODE $SLURM_GPUS_ON_NODE $SLURM_GPUS "
        "$SLURM_CPUS_PER_TASK $SLURM_PROCID"
    )
    assert follow(text, {}, "run.sh").commands[0][-8:] == [
        "4",
        "4",
        "32",
        "8",
        "8",
        "32",
        "12",
        "${SLURM_PROCID}",
    ]
    assert follow(text, {"SLURM_NNODES": "2"}, "run.sh").commands[0][-8] == "2"
    assert follow(f"{text}; X=$SLURM_NNODES", {}, "run.sh").variables == {"X": ["4"]}


def test_devices_of_a_node_are_those_of_a_job_by_its_nodes():
    text = "#SBATCH --nodes 8\n#SBATCH --gpus 32\nsay $SLURM_GPUS_ON_NODE $SLURM_GPUS"
    assert follow(text, {}, "run.sh").commands[0][-2:] == ["4", "32"]
    uneven = text.replace("32", "30")
    assert follow(uneven, {}, "run.sh").commands[0][-2:] == ["${SLURM_GPUS_ON_NODE}", "30"]


def test_a_launcher_that_asks_for_more_than_the_scheduler_gives():
    words = "--nodes=2 --gres=gpu:8 srun torchrun --nnodes 4 --nproc_per_node 8"
    devices = devices_of(launch_of(words.split()))
    assert devices.conflict == ("--nnodes 4", "--nodes 2")
    assert devices_of(launch_of(words.replace("4", "1").split())).conflict is None


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("jsrun --nrs 48 --tasks_per_rs 1 --gpu_per_rs 1 --rs_per_host 6", 48),
        ("jsrun -n 8 -a 6 -g 6 -c 42", 48),
        ("jsrun -n 8 -a 1 -g 6", 48),
        ("aprun -n 16 -N 4", 16),
        ("lrun -N 4 -T 4", 16),
        ("flux run -N 2 -n 16", 16),
        ("ibrun -n 8", 8),
        ("deepspeed -i worker-0:0,1,2,3", 4),
        ("deepspeed -i worker-0:0,1@worker-1:0,1", 4),
    ],
)
def test_launchers_of_other_machines(words, count):
    assert devices_of(launch_of(words.split())).count == count
