# The web server, the worker and beat: one image, three commands. No torch in it.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# The lock is a constraint with hashes: only what the extra needs is installed, in the pinned form.
RUN pip install --no-cache-dir "$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements.lock)" \
 && python -m venv /venv \
 && uv pip install --no-cache --python /venv/bin/python --compile-bytecode \
      -r pyproject.toml --extra web -c requirements.lock --require-hashes

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /srv/app app \
 && install -d -o app -g app /var/lib/tokenfactory
WORKDIR /srv/app
COPY --from=build /venv /venv
COPY manage.py ./
COPY config config
COPY api api
COPY portal portal
COPY billing billing
COPY inference_grpc inference_grpc
COPY templates templates
COPY static static
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 VAR_DIR=/var/lib/tokenfactory
USER app
EXPOSE 8000
STOPSIGNAL SIGTERM
CMD ["granian", "--interface", "asgi", "--host", "0.0.0.0", "--port", "8000", "--no-access-log", "config.asgi:application"]
