"""Entry point of WSGI servers: `gunicorn agentops.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

from agentops import heap

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")

application = get_wsgi_application()
heap.keep_pages()
