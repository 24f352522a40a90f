# The proxy alone: no torch, no engine. Built from the repository's root:
#   docker build -f compose/proxy.Dockerfile -t samewise/proxy:0.1.0 .
FROM python:3.12.9-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/samewise
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY proxy ./proxy
COPY backend ./backend
RUN /opt/samewise/bin/pip install --no-cache-dir --constraint constraints.txt hatchling \
 && /opt/samewise/bin/pip install --no-cache-dir --constraint constraints.txt --no-build-isolation .

FROM python:3.12.9-slim-bookworm
RUN useradd --uid 10001 --create-home --home-dir /var/lib/samewise --shell /usr/sbin/nologin samewise
COPY --from=build /opt/samewise /opt/samewise
ENV PATH=/opt/samewise/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER samewise
WORKDIR /var/lib/samewise
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["samewise"]
CMD ["serve", "--host", "0.0.0.0"]
