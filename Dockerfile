# drl-cli on processors. docs/container.md shows how to build and use the image.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY conf conf
COPY drl_cli drl_cli
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# A package index with builds of torch for processors. Without it, pip installs the CUDA packages that torch asks for.
ARG PIP_EXTRA_INDEX_URL
# Extras of the package, such as [mujoco,video]
ARG EXTRAS
# The user of the files that a run writes
ARG UID=1000
# g++ compiles the updates of long runs (trainer.compile). Its version is the one of the distribution.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)${EXTRAS}" && useradd --create-home --uid "$UID" drl
USER $UID
WORKDIR /home/drl
RUN mkdir outputs
CMD ["drl-train", "--help"]
