"""A small Hub on loopback: repositories in memory, and the bad days that a real one has."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"


def digest(*parts: bytes) -> str:
    return hashlib.sha1(b"\0".join(parts)).hexdigest()


@dataclass
class Repo:
    private: bool = False
    gated: bool = False
    refs: dict[str, str] = field(default_factory=dict)  # branches and tags → commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], branch: str = "main", message: str = "") -> str:
        """All files of the branch and these → a new commit on it."""
        whole = {**self.files(branch), **files}
        named = [part for path in sorted(whole) for part in (path.encode(), whole[path])]
        name = digest(str(len(self.messages)).encode(), *named)
        self.commits[name] = whole
        self.refs[branch] = name
        self.messages.append(message)
        return name

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits.get(self.refs.get(revision, revision), {})


class LoopbackHub:
    """The server; `repos` may be looked at and changed at any time.

    Attributes:
        requests: method and path of every request, in order.
        status: path ending → (status, headers) to answer instead.
        cut: path ending → how many bytes of the file ever arrive, whatever range is asked for.
        cut_once: path ending → bytes after which the connection is cut, the first time only.
        redirect: path endings whose content is on another host, under `/cdn/…`.
        tokens: path of every request that carried a token.
        errors: what is wrong with the metadata of every card.
        uploaded: LFS objects by SHA-256.
        clock: how long its clients waited.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[tuple[str, str]] = []
        self.status: dict[str, tuple[int, dict[str, str]]] = {}
        self.cut: dict[str, int] = {}
        self.cut_once: dict[str, int] = {}
        self.redirect: list[str] = []
        self.tokens: list[str] = []
        self.errors: list[str] = []
        self.clock: Any = None
        self.uploaded: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fetched(self) -> list[str]:
        """Names of the files whose content was sent, in order."""
        return [path.split("/", 5)[5] for method, path in self.requests if method == "GET" and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for ending, (status, headers) in self.hub.status.items():
            if path.endswith(ending):
                return self._send(status, b"", headers)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token != TOKEN:
            return self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        if token:
            self.hub.tokens.append(path)
        parts = path.strip("/").split("/")
        if parts[0] == "cdn":
            return self._cdn(parts, path)
        if parts[0] == "lfs":
            self.hub.uploaded[parts[1]] = self.body
            return self._send(200)
        if parts == ["api", "validate-yaml"]:
            errors = [{"message": message} for message in self.hub.errors]
            return self._json({"errors": errors, "warnings": []}, 400 if errors else 200)
        if parts[:3] == ["api", "repos", "create"]:
            return self._create(token)
        repo_id = "/".join(parts[2:4] if parts[0] == "api" else parts[:2]).removesuffix(".git")
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.private and not token):
            return self._send(401 if not token else 404, b"", {"X-Error-Code": "RepoNotFound"})
        if repo.gated and not token:
            return self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        if parts[0] != "api":
            if parts[2] == "resolve":
                return self._resolve(repo, repo_id, parts, path)
            return self._lfs_batch()
        if self.command == "POST" and not token:
            return self._send(401, b"", {"X-Error-Message": "Invalid username or password."})
        if len(parts) == 4 or parts[4] == "revision":
            files = [{"rfilename": name} for name in repo.files()]
            about = {
                "id": repo_id,
                "sha": repo.refs.get("main"),
                "private": repo.private,
                "siblings": files,
                "tags": [],
            }
            return self._json({**about, "downloads": 0, "likes": 0})
        if parts[4] == "branch":
            repo.refs.setdefault("/".join(parts[5:]), repo.refs.get("main", ""))
            return self._json({})
        if parts[4] == "preupload":
            asked = json.loads(self.body)["files"]
            large = {file["path"]: file["path"].endswith(".safetensors") for file in asked}
            modes = [
                {"path": path, "uploadMode": "lfs" if big else "regular", "shouldIgnore": False, "oid": None}
                for path, big in large.items()
            ]
            return self._json({"files": modes})
        assert parts[4] == "commit", path
        return self._commit(repo, repo_id, "/".join(parts[5:]))

    def _create(self, token: str) -> None:
        if not token:
            return self._send(401, b"", {"X-Error-Message": "Invalid username or password."})
        asked = json.loads(self.body)
        repo_id = f"{asked['organization']}/{asked['name']}"
        if repo_id in self.hub.repos:
            return self._send(409, b"{}")
        private = asked.get("private") is True or asked.get("visibility") == "private"
        self.hub.repos[repo_id] = Repo(private=private)
        return self._json({"url": f"{self.hub.url}/{repo_id}", "name": repo_id, "id": repo_id})

    def _resolve(self, repo: Repo, repo_id: str, parts: list[str], path: str) -> None:
        revision, name = parts[3], "/".join(parts[4:])
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        found = {"X-Repo-Commit": commit}
        content = repo.commits[commit].get(name)
        if content is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", **found})
        etag = f'"{hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else digest(content)}"'
        if any(path.endswith(ending) for ending in self.hub.redirect):
            linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content)), "ETag": '"other"', **found}
            elsewhere = self.hub.url.replace("127.0.0.1", "localhost")  # another host, as a CDN is
            return self._send(302, b"", {"Location": f"{elsewhere}/cdn/{repo_id}/{commit}/{name}", **linked})
        return self._content(content, {"ETag": etag, **found}, path)

    def _cdn(self, parts: list[str], path: str) -> None:
        content = self.hub.repos["/".join(parts[1:3])].commits[parts[3]]["/".join(parts[4:])]
        self._content(content, {}, path)

    def _content(self, content: bytes, headers: dict[str, str], path: str) -> None:
        start = 0
        status = 200
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and self.command == "GET":
            start, status = int(asked[6:].split("-")[0]), 206
            headers = {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        end = len(content)
        if self.command == "GET":
            for ending in [ending for ending in self.hub.cut_once if path.endswith(ending)]:
                end = self.hub.cut_once.pop(ending)
            end = next((most for ending, most in self.hub.cut.items() if path.endswith(ending)), end)
        self._send(status, content[start:], {**headers, "Accept-Ranges": "bytes"}, most=max(end - start, 0))

    def _lfs_batch(self) -> None:
        answers = []
        for wanted in json.loads(self.body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.uploaded:
                answer["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}", "header": {}}}
            answers.append(answer)
        self._json({"transfer": "basic", "objects": answers})

    def _commit(self, repo: Repo, repo_id: str, branch: str) -> None:
        files, message = {}, ""
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                message = value["summary"]
            elif item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert item["key"] == "lfsFile", item["key"]
                files[value["path"]] = self.hub.uploaded[value["oid"]]
        name = repo.commit(files, branch, message)
        self._json({"commitUrl": f"{self.hub.url}/{repo_id}/commit/{name}", "commitOid": name})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, *, most: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if most is None else body[:most])
            if most is not None and most < len(body):
                self.close_connection = True
                self.wfile.flush()
