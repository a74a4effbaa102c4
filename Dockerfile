# An image with tianji and its usual extras, for CPUs:
#
#   docker build -t tianji .
#   docker run --rm --shm-size 1g -v "$PWD/experiments:/home/tianji/experiments" tianji train ppo_cartpole
#
# Samples move through shared memory, of which a container has 64 MB unless --shm-size says more. With CUDA:
#
#   docker build -t tianji:cuda --build-arg TORCH=https://download.pytorch.org/whl/cu126 .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH=https://download.pytorch.org/whl/cpu
ARG EXTRAS=atari,export,mujoco,sweep
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir torch --index-url "${TORCH}" \
    && pip install --no-cache-dir "$(echo /wheels/tianji-*.whl)[${EXTRAS}]" \
    && rm -r /wheels \
    && useradd --create-home tianji
USER tianji
WORKDIR /home/tianji
ENTRYPOINT ["tianji"]
CMD ["--help"]
