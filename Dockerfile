# A machine on which `make demo` and `make test` run. Everything they need is installed by tools/setup,
# so that this file and a developer's own machine cannot differ.
FROM debian:12
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends make ca-certificates python3.11-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /tensorbus
COPY . .
RUN make setup
CMD ["make", "demo"]
