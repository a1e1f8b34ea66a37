# SPDX-License-Identifier: Apache-2.0
# The two commands of README.md in a bare Debian 12: docker build -t tree_attn . && docker run --rm tree_attn
FROM debian:12
COPY . /tree_attn
WORKDIR /tree_attn
RUN ./run demo
CMD ["./run", "test"]
