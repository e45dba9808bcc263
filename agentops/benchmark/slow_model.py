"""A model provider that thinks for as long as it is told: chat completions over HTTP, each answered after the same time.

A process of its own, so that its work is not counted as the workers'. It prints its port, then one line for each request:
the moment when it arrived (`time.monotonic()`), and how many are being answered.
"""

import asyncio
import json
import sys
import time

_ANSWER = json.dumps(
    {
        "choices": [{"message": {"role": "assistant", "content": "done"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
).encode()
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER)


async def serve(seconds: float) -> None:
    answering = 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answering
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                await reader.readexactly(length)
                answering += 1
                sys.stdout.write(f"{time.monotonic():.6f} {answering}\n")
                sys.stdout.flush()
                await asyncio.sleep(seconds)
                answering -= 1
                writer.write(_HEAD + _ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed it
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, backlog=2000)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
