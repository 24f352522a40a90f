# vLLM with the environment contract in it. Two stages to choose from, built from the repository's root:
#   docker build -f compose/backend.Dockerfile --target cpu -t samewise/backend:0.1.0 .
#   docker build -f compose/backend.Dockerfile --target gpu -t samewise/backend:0.1.0 .

FROM python:3.12.9-slim-bookworm AS cpu
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash g++ libnuma1 libgomp1 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/samewise
COPY pyproject.toml constraints.txt constraints-vllm.txt README.md LICENSE ./
COPY scripts/vllm-venv.sh ./scripts/vllm-venv.sh
COPY proxy ./proxy
COPY backend ./backend
# PIP_ARGS: an index with CPU builds of torch spares gigabytes.
ARG PIP_ARGS=""
RUN PIP_CONSTRAINT=/opt/samewise/constraints-vllm.txt PIP_NO_CACHE_DIR=1 VLLM_VENV=/opt/venv PIP_ARGS="$PIP_ARGS" scripts/vllm-venv.sh
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["samewise-backend"]
CMD ["serve", "--engine", "vllm", "--model", "/models/tiny", "--host", "0.0.0.0", "--port", "8000"]

FROM vllm/vllm-openai:v0.32.0 AS gpu
WORKDIR /opt/samewise
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proxy ./proxy
COPY backend ./backend
# Beside the image's own vLLM and torch, which nothing here may replace: ours without its dependencies, and what it imports.
RUN pip install --no-cache-dir "msgspec>=0.19" "click>=8.1" "aiohttp>=3.12" "hatchling>=1.27" \
 && pip install --no-cache-dir --no-deps --no-build-isolation .
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["samewise-backend"]
CMD ["serve", "--engine", "vllm", "--model", "/models/tiny", "--host", "0.0.0.0", "--port", "8000"]
