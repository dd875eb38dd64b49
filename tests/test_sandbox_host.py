"""Where generated programs may be run: what is a container, and what the policy makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError, LaunchError
from nbhelpers.jobs.sandbox import host, running, seccomp


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "Docker (/.dockerenv exists)"),
        ({"run/.containerenv": ""}, {}, "Podman (/run/.containerenv exists)"),
        (
            {},
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "Kubernetes (KUBERNETES_SERVICE_HOST is set)",
        ),
        ({}, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "Kaggle (KAGGLE_KERNEL_RUN_TYPE is set)"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn (as systemd says)"),
        ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "kubepods (in /proc/1/cgroup)"),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, None),
        ({"proc/self/ns/pid": "-> pid:[4026531836]"}, {}, None),
        ({"proc/self/ns/pid": "-> pid:[4026532200]"}, {}, "a process namespace of its own"),
        ({"proc/self/ns/pid": "-> pid:[4026532200]", "proc/version": "Microsoft"}, {}, None),
        ({".dockerenv": ""}, {"APPTAINER_CONTAINER": "/x.sif"}, None),
        ({".flatpak-info": "", "proc/self/ns/pid": "-> pid:[4026532200]"}, {}, None),
    ],
)
def test_containers_are_known_by_their_marks(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], expected: str | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(text[3:]) if text.startswith("-> ") else path.write_text(text)
    found = host.container(tmp_path, environ)
    assert found == expected or (expected and found and found.startswith(expected))


def test_the_policy_decides_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"usable": True, "reason": "", "container": None, "warning": "Not protected: this."}
    monkeypatch.setattr(running, "describe", lambda: facts)
    monkeypatch.setattr(host, "sharing", lambda: None)
    assert running.may_run("never")[0] is False
    allowed, why = running.may_run("in_container")
    assert not allowed and "no sign of a container" in why and "run_generated_code=anywhere" in why
    assert running.may_run("anywhere") == (
        True,
        "run_generated_code is anywhere. Not protected: this.",
    )
    facts["container"] = "Docker (/.dockerenv exists)"
    assert running.may_run("in_container")[0] is True
    with pytest.raises(ConfigError, match="sometimes"):
        running.may_run("sometimes")


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_where_there_is_no_sandbox_no_policy_runs_a_program(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(running.sys, "platform", platform)
    running.describe.cache_clear()
    try:
        assert running.describe()["usable"] is False
        for policy in ("in_container", "anywhere"):
            allowed, why = running.may_run(policy)
            assert not allowed and platform in why
        with pytest.raises(LaunchError, match=platform) as caught:
            running.run_programs(["x = 1"])
        assert "run_generated_code=never" in caught.value.fix
    finally:
        running.describe.cache_clear()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_list_of_calls_holds_nothing_that_reaches_out(machine: str) -> None:
    listed = seccomp.numbers(seccomp._ALLOWED, machine)
    checked = seccomp.numbers(seccomp._CHECKED, machine)
    assert len(set(listed.values()) | set(checked.values())) == len(listed) + len(checked)
    out = {"fork", "vfork", "execve", "execveat", "socket", "connect", "bind", "sendmsg", "ptrace"}
    out |= {"prctl", "setuid", "unshare", "setns", "mount", "bpf", "keyctl", "unlinkat", "renameat"}
    out |= {"io_uring_setup", "process_vm_readv", "pidfd_open", "tkill", "rt_sigqueueinfo", "chmod"}
    assert not out & (set(listed) | set(checked))
    assert {"read", "write", "futex", "mmap", "exit_group"} <= set(listed)
    assert len(seccomp.build_filter(machine, 7, writable=True)) < 4096 * 8
