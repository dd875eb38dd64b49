"""A hub on this machine: serves folders as data set or model repositories to `huggingface_hub`.

It answers what the client asks of the real one: repository info, tree and path listings, `HEAD`
and `GET` of files with commit and ETag headers, ranges, gated, private and missing repositories;
it takes new repositories and commits of small and large files; and it fails as asked (`Trouble`).
Point this process or a fresh one at it::

    with LocalHub() as hub:
        hub.add("owner/name", folder)
        hub.use_here(monkeypatch, cache_dir)
        subprocess.run([...], env=os.environ | hub.environment(cache_dir))
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

FILE_URL = "{repo_id}/resolve/{revision}/{filename}"
KINDS = {"datasets": "dataset", "models": "model"}


@dataclass(kw_only=True)
class Repo:
    """A folder served as one commit of a repository."""

    repo_id: str
    repo_type: str
    folder: Path
    commit: str
    is_gated: bool = False
    is_private: bool = False
    card: dict[str, Any] = field(default_factory=dict)

    def files(self) -> dict[str, Path]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path for path in paths}

    def has_revision(self, revision: str) -> bool:
        return revision in ("main", self.commit, "refs/pr/1")


@dataclass(kw_only=True)
class Trouble:
    """What goes wrong with the next `times` requests whose path ends in `path`.

    `status`: the answer instead (429 and 503 say when to come again); `cut`: the connection ends
    in the middle of the content, or without an answer where there is none; `corrupt`: other bytes,
    as many.
    """

    path: str = ""
    method: str = ""
    status: int = 0
    cut: bool = False
    corrupt: bool = False
    times: int = 10**9

    def meets(self, method: str, path: str) -> bool:
        """Whether a request meets it; counts that one."""
        is_hit = self.times > 0 and path.endswith(self.path) and self.method in ("", method)
        self.times -= is_hit
        return is_hit


def blob_id(path: Path) -> str:
    """Git's name of a file's content, the ETag of the real hub for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class LocalHub:
    """The server; a context manager. `requests` lists (method, path) as they came, without headers.

    Args:
        token: The only token that opens gated and private repositories.
        troubles: What goes wrong; may be changed at any time.
        is_mirror: Leave the code out of the answer 401, as some mirrors do.
    """

    def __init__(
        self, *troubles: Trouble, token: str = "hf_local_test", is_mirror: bool = False
    ) -> None:
        self.token, self.troubles, self.is_mirror = token, list(troubles), is_mirror
        self.requests: list[tuple[str, str]] = []
        self.repos: dict[tuple[str, str], Repo] = {}
        self.large_files: dict[str, bytes] = {}  # uploaded, by SHA-256; commits point to them
        self.folders = tempfile.TemporaryDirectory()  # of repositories that clients make
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(
        self,
        repo_id: str,
        folder: Path,
        *,
        repo_type: str = "dataset",
        commit: str | None = None,
        is_gated: bool = False,
        is_private: bool = False,
        card: dict[str, Any] | None = None,
    ) -> Repo:
        """Serve `folder`; the commit's name follows from its content unless given."""
        repo = Repo(
            repo_id=repo_id,
            repo_type=repo_type,
            folder=Path(folder),
            commit=commit or "",
            is_gated=is_gated,
            is_private=is_private,
            card=card or {},
        )
        if commit is None:
            names = "".join(f"{name} {blob_id(path)}\n" for name, path in repo.files().items())
            repo.commit = hashlib.sha1(names.encode()).hexdigest()
        self.repos[repo_type, repo_id] = repo
        return repo

    def environment(
        self, cache_dir: Path, *, token: str | None = None, offline: bool = False
    ) -> dict[str, str]:
        """Variables for a process that shall use this hub; an empty HF_TOKEN means none."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(cache_dir),
            "HF_HUB_CACHE": str(Path(cache_dir) / "hub"),
            "HF_HUB_OFFLINE": "1" if offline else "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_TOKEN": token or "",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_DATASETS_OFFLINE": "1" if offline else "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def use_here(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cache_dir: Path,
        *,
        token: str | None = None,
        offline: bool = False,
    ) -> None:
        """Point this very process at this hub, until the test ends."""
        from huggingface_hub import close_session, constants

        environment = self.environment(cache_dir, token=token, offline=offline)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        values = {
            "ENDPOINT": self.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{self.endpoint}/{FILE_URL}",
            "HF_HUB_CACHE": environment["HF_HUB_CACHE"],
            "HF_TOKEN_PATH": str(Path(cache_dir) / "token"),
            "HF_STORED_TOKENS_PATH": str(Path(cache_dir) / "stored_tokens"),
            "HF_HUB_OFFLINE": offline,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_PROGRESS_BARS": True,
        }
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        if config := sys.modules.get("datasets.config"):
            monkeypatch.setattr(config, "HF_ENDPOINT", self.endpoint)
            for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
                monkeypatch.setattr(config, name, offline)
        close_session()  # an earlier one knows another proxy

    def __enter__(self) -> LocalHub:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.folders.cleanup()


@dataclass(kw_only=True, eq=False)
class Refusal(Exception):
    """An answer that is an error, with the codes that the client looks at."""

    status: int
    code: str = ""
    message: str = ""


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        server_hub = hub

    return Handler


class _Handler(BaseHTTPRequestHandler):
    server_hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, url = self.server_hub, urlsplit(self.path)
        hub.requests.append((self.command, unquote(url.path)))
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._trouble = next(
            (t for t in hub.troubles if t.meets(self.command, unquote(url.path))), Trouble()
        )
        try:
            if self._trouble.status:
                raise Refusal(status=self._trouble.status, message="as the test asked")
            self._route([unquote(part) for part in url.path.strip("/").split("/")])
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            headers["Retry-After"] = "1" if refusal.status in (429, 503) else ""
            self._send_json({"error": refusal.message}, status=refusal.status, headers=headers)

    def _route(self, parts: list[str]) -> None:
        if parts == ["api", "repos", "create"]:
            self._create()
        elif parts == ["api", "validate-yaml"]:
            self._send_json({"errors": [], "warnings": []})
        elif parts[-2:] == ["objects", "batch"]:
            self._offer_uploads()
        elif parts[0] == "large-files":
            self.server_hub.large_files[parts[1]] = self._body
            self._send_json({})
        elif parts[0] == "api" and len(parts) >= 4 and parts[1] in KINDS:
            repo = self._repo(KINDS[parts[1]], "/".join(parts[2:4]))
            self._api(repo, parts[4:])
        elif parts[:2] == ["api", "whoami-v2"]:
            self._whoami()
        elif "resolve" in parts:
            is_dataset = parts[0] == "datasets"
            names = parts[1:] if is_dataset else parts
            at = names.index("resolve")
            repo = self._repo("dataset" if is_dataset else "model", "/".join(names[:at]))
            self._resolve(repo, names[at + 1], "/".join(names[at + 2 :]))
        else:
            raise Refusal(status=404, message="no such page")

    def _create(self) -> None:
        wanted, hub = json.loads(self._body), self.server_hub
        if self._token() != hub.token:
            raise Refusal(status=401, message="Invalid credentials in Authorization header")
        repo_id = f"{wanted.get('organization') or 'tester'}/{wanted['name']}"
        url = {"url": f"{hub.endpoint}/{repo_id}"}
        if ("model", repo_id) in hub.repos:
            self._send_json(url | {"error": "You already created this model repo"}, status=409)
            return
        folder = Path(hub.folders.name) / repo_id
        folder.mkdir(parents=True)
        is_private = wanted.get("private") or wanted.get("visibility") == "private"
        hub.add(repo_id, folder, repo_type="model", is_private=is_private)
        self._send_json(url)

    def _offer_uploads(self) -> None:
        place = f"{self.server_hub.endpoint}/large-files"
        objects = [
            thing | {"actions": {"upload": {"href": f"{place}/{thing['oid']}"}}}
            for thing in json.loads(self._body)["objects"]
        ]
        self._send_json({"transfer": "basic", "objects": objects})

    def _commit(self, repo: Repo) -> None:
        """Write the files of a commit; large ones were uploaded before."""
        for line in self._body.decode().splitlines():
            key, value = (json.loads(line)[name] for name in ("key", "value"))
            if key in ("file", "lfsFile"):
                is_small = key == "file"
                path = repo.folder / value["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                large = self.server_hub.large_files
                path.write_bytes(
                    base64.b64decode(value["content"]) if is_small else large[value["oid"]]
                )
        options = {"repo_type": repo.repo_type, "is_gated": repo.is_gated, "card": repo.card}
        options["is_private"] = repo.is_private
        commit = self.server_hub.add(repo.repo_id, repo.folder, **options).commit
        url = f"{self.server_hub.endpoint}/{repo.repo_id}/commit/{commit}"
        self._send_json({"success": True, "commitOid": commit, "commitUrl": url})

    def _token(self) -> str | None:
        value = self.headers.get("Authorization", "")
        return value.removeprefix("Bearer ") or None

    def _whoami(self) -> None:
        if self._token() != self.server_hub.token:
            raise Refusal(status=401, message="Invalid credentials in Authorization header")
        self._send_json({"name": "tester", "type": "user", "orgs": []})

    def _repo(self, repo_type: str, repo_id: str) -> Repo:
        """The repository, or the real hub's answer: 401 to the unknown, 404 to a valid token."""
        token = self._token()
        if token not in (None, self.server_hub.token):
            raise Refusal(status=401, message="Invalid credentials in Authorization header")
        repo = self.server_hub.repos.get((repo_type, repo_id))
        if repo is None or (repo.is_private and token is None):
            if token is None:
                # The client tells this answer by the real hub's address, which is not ours.
                code = "" if self.server_hub.is_mirror else "RepoNotFound"
                raise Refusal(status=401, code=code, message="Invalid username or password.")
            raise Refusal(status=404, code="RepoNotFound", message="Repository not found")
        return repo

    def _check_revision(self, repo: Repo, revision: str) -> None:
        if not repo.has_revision(revision):
            raise Refusal(
                status=404, code="RevisionNotFound", message=f"Invalid rev id: {revision}"
            )

    def _api(self, repo: Repo, rest: list[str]) -> None:
        verb = rest[0] if rest else "info"
        if verb in ("revision", "tree", "paths-info"):
            revision = rest[1] if len(rest) > 1 else "main"
            if rest[1:3] == ["refs", "pr"]:  # sent unquoted by some versions
                revision, rest = "/".join(rest[1:4]), [verb, "", *rest[4:]]
            self._check_revision(repo, revision)
        if verb in ("info", "revision"):
            self._send_json(self._info(repo))
        elif verb == "tree":
            self._send_tree(repo, "/".join(rest[2:]))
        elif verb == "paths-info":
            wanted = self._wanted_paths()
            self._send_json([self._entry(n, p) for n, p in repo.files().items() if n in wanted])
        elif verb in ("preupload", "commit") and (
            self._token() is None or repo.card.get("refuses_token")
        ):
            raise Refusal(status=403, message="You have no right to write here.")
        elif verb == "preupload":
            names = [file["path"] for file in json.loads(self._body)["files"]]
            modes = {n: "lfs" if n.endswith((".safetensors", ".npz")) else "regular" for n in names}
            files = [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]
            self._send_json({"files": files})
        elif verb == "commit":
            self._commit(repo)
        elif verb == "auth-check":
            self._check_terms(repo)
            self._send_json({})
        elif verb == "refs":
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.commit}
            self._send_json({"branches": [branch], "tags": [], "converts": []})
        else:
            raise Refusal(status=404, message="no such page")

    def _wanted_paths(self) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            return json.loads(self._body)["paths"]
        return parse_qs(self._body.decode()).get("paths", [])

    def _info(self, repo: Repo) -> dict[str, Any]:
        return {
            "id": repo.repo_id,
            "sha": repo.commit,
            "private": repo.is_private,
            "gated": "auto" if repo.is_gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "lastModified": "2025-01-01T00:00:00.000Z",
            "createdAt": "2025-01-01T00:00:00.000Z",
            "cardData": repo.card,
            "siblings": [{"rfilename": name} for name in repo.files()],
        }

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": blob_id(path)}

    def _send_tree(self, repo: Repo, under: str) -> None:
        files = {n: p for n, p in repo.files().items() if not under or n.startswith(under + "/")}
        if under and not files:
            raise Refusal(status=404, code="EntryNotFound", message=f"{under} does not exist")
        is_recursive = parse_qs(urlsplit(self.path).query).get("recursive", [""])[0].lower() in (
            "true",
            "1",
        )
        depth = under.count("/") + 1 if under else 0
        entries: dict[str, dict[str, Any]] = {}
        for name, path in files.items():
            parts = name.split("/")
            for end in range(depth + 1, len(parts)):
                folder = "/".join(parts[:end])
                entries[folder] = {"type": "directory", "path": folder, "size": 0, "oid": "0" * 40}
            entries[name] = self._entry(name, path)
        shown = [e for n, e in entries.items() if is_recursive or n.count("/") == depth]
        self._send_json(shown)

    def _check_terms(self, repo: Repo) -> None:
        """Refuse who did not accept the terms of a gated repository."""
        if repo.is_gated and self._token() is None:
            raise Refusal(
                status=401, code="GatedRepo", message=f"Access to {repo.repo_id} is restricted."
            )
        if repo.is_gated and repo.card.get("refuses_token"):
            raise Refusal(
                status=403, code="GatedRepo", message="You are not in the authorized list."
            )

    def _resolve(self, repo: Repo, revision: str, name: str) -> None:
        self._check_revision(repo, revision)
        self._check_terms(repo)
        path = repo.files().get(name)
        if path is None:
            raise Refusal(status=404, code="EntryNotFound", message="Entry not found")
        content = path.read_bytes()
        headers = {
            "X-Repo-Commit": repo.commit,
            "ETag": f'"{blob_id(path)}"',
            "Accept-Ranges": "bytes",
        }
        start, status = 0, 200
        if self.headers.get("Range", "").startswith("bytes="):
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first or 0), int(last) + 1 if last else len(content)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            content, status = content[start:end], 206
        self._send(content, "application/octet-stream", status=status, headers=headers)

    def _send_json(
        self, value: Any, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self._send(
            json.dumps(value).encode(), "application/json", status=status, headers=headers or {}
        )

    def _send(self, content: bytes, kind: str, *, status: int, headers: dict[str, str]) -> None:
        if self._trouble.cut and self.command == "HEAD":
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._trouble.corrupt:
            content = content.translate(bytes(range(255, -1, -1)))
        self.close_connection |= self._trouble.cut
        self.wfile.write(content[: len(content) // 2] if self._trouble.cut else content)
