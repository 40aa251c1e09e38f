# The engine: gRPC server, scheduler, model. No Django in it.
FROM python:3.11-slim-bookworm AS build
ARG TORCH=torch==2.13.0
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# torch on its own: the CPU and the GPU build share one version number. TORCH may name the build that is wanted.
RUN pip install --no-cache-dir "$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements.lock)" \
 && python -m venv /venv \
 && uv pip install --no-cache --python /venv/bin/python --compile-bytecode \
      -r pyproject.toml --extra engine -c requirements.lock --require-hashes \
 && /venv/bin/pip install --no-cache-dir "$TORCH"

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10002 --home-dir /srv/app app \
 && install -d -o app -g app /var/lib/tokenfactory
WORKDIR /srv/app
COPY --from=build /venv /venv
COPY inference_grpc inference_grpc
COPY kernels kernels
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 ENGINE_LISTEN=0.0.0.0:50051 ENGINE_JOURNAL_DIR=/var/lib/tokenfactory
USER app
EXPOSE 50051
STOPSIGNAL SIGTERM
CMD ["python", "-m", "inference_grpc.server"]
