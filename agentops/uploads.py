"""Files are taken at one address, small and in memory; anywhere else a request with a file is refused before it is read.

Django would write each to the disk, however large, before any view is asked.
"""

from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from runs import access
from runs.models.evidence import LARGEST

#: Where evidence is given, and the permission that this takes.
TAKES_FILES = {"runs:answer_doubt": "runs.resolve_doubt"}


class SmallFile(FileUploadHandler):
    """One file of at most LARGEST bytes for who may give evidence; refuses every other request (400) where a file begins."""

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__(request)
        self.parts: list[bytes] = []
        self.taken = False

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        match = self.request.resolver_match if self.request else None
        permission = TAKES_FILES.get(match.view_name) if match else None
        if self.request is None or permission is None or not access.may(self.request.user, permission):
            raise MultiPartParserError("no page takes files")
        if self.taken:
            raise MultiPartParserError("only one file is taken")
        self.parts, self.taken = [], True

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        if start + len(raw_data) > LARGEST:
            raise MultiPartParserError(f"the file is larger than {LARGEST // 1024:,} KB")
        self.parts.append(raw_data)

    def file_complete(self, file_size: int) -> SimpleUploadedFile:
        return SimpleUploadedFile(self.file_name or "file", b"".join(self.parts))
