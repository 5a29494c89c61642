# An image with ps-server, ps-worker and ps-lab, made of this folder:
#
#   docker build -t paramserver:0.2.0 .
#
# EXTRAS: "worker" has TensorFlow; "worker,examples" scikit-learn, too, for the README's job and the examples; "" is
# enough for servers and for workers without TensorFlow. A job's module comes on top:
#
#   FROM paramserver:0.2.0
#   COPY my_job.py /work/
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=worker
RUN python -m venv /opt/paramserver
COPY . /src
WORKDIR /src
RUN /opt/paramserver/bin/pip install --no-cache-dir -c constraints.txt ".${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON}-slim
# The number that manifests name: Kubernetes cannot tell of a name whether it is root's.
RUN groupadd --gid 10001 ps && useradd --uid 10001 --gid 10001 --create-home ps \
    && mkdir /work /runs && chown 10001:10001 /work /runs
COPY --from=build /opt/paramserver /opt/paramserver
ENV PATH=/opt/paramserver/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /work
# gRPC, payloads
EXPOSE 7070 7071
CMD ["ps-server", "--help"]
