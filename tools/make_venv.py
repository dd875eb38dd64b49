"""Make the virtual environment of `make setup`, with a CPU build of torch where there is no GPU."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent


def has_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU " in listed.stdout


def make(folder: pathlib.Path) -> None:
    """Create the environment, or keep one that works and has this Python's version."""
    python = folder / "bin" / "python"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    if python.exists():
        answer = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, check=False
        )
        if answer.stdout.strip() == here:
            return
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise OSError(f"{folder} exists and is no virtual environment")
    venv.create(folder, with_pip=True, clear=True)


def pip_arguments(*, gpu: bool, torch_index: str) -> list[str]:
    """What follows `pip install`: the package itself, its tools, and a constraint without a GPU."""
    arguments = ["--editable", ".[dev]"]
    if not gpu:
        arguments += ["--constraint", "constraints-cpu.txt"]
    if torch_index:
        arguments += ["--extra-index-url", torch_index]
    return arguments


def main() -> int:
    """Create the environment and install; the exit code is pip's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--torch-index", default="")
    chosen = parser.parse_args()
    try:
        make(chosen.venv)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"A virtual environment could not be made in {chosen.venv}: {error}")
        print("Fix: on Debian or Ubuntu install the package python3-venv, then run this again.")
        return 1
    gpu = has_gpu()
    kind = (
        "a GPU is here: torch as PyPI has it" if gpu else "no GPU: torch from constraints-cpu.txt"
    )
    print(
        f"{kind}. Installing into {chosen.venv}: about 2 GB, one to three minutes ...", flush=True
    )
    python = chosen.venv.resolve() / "bin" / "python"
    arguments = pip_arguments(gpu=gpu, torch_index=chosen.torch_index)
    command = [str(python), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        print("pip failed; what it says stands above. Fix that, then run make setup again.")
    else:
        # On all cores, where pip takes one. Files for other Pythons do not compile, nor need to.
        packages = chosen.venv.resolve() / "lib"
        command = [str(python), "-m", "compileall", "-qq", "-j", "0", str(packages)]
        quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}
        subprocess.run(command, env=quiet, check=False)
        print(f"Done. For its commands: source {chosen.venv}/bin/activate, then nbhelpers --help")
    return code


if __name__ == "__main__":
    sys.exit(main())
