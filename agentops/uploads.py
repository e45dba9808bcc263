"""No page takes files, so none is kept: Django would write each to the disk, however large, before any view is asked."""

from typing import Any, Never

from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParserError


class NoFiles(FileUploadHandler):
    """Refuses the request (400) where a file begins, before any of it is read."""

    def new_file(self, *args: Any, **kwargs: Any) -> Never:
        raise MultiPartParserError("no page takes files")

    def receive_data_chunk(self, raw_data: bytes, start: int) -> Never:
        raise MultiPartParserError("no page takes files")

    def file_complete(self, file_size: int) -> Never:
        raise MultiPartParserError("no page takes files")
