#!/bin/sh
# Owns: fetching the permissively licensed source code that the demo target is trained on.
# Run by hand, on a Debian 12 machine: train/fetch_sources.sh DIR   (about 250 MB fetched, 1.5 GB unpacked)
# Must not: put anything inside the repository; the data is never committed.
set -u
DIR=${1:?usage: fetch_sources.sh DIR}
mkdir -p "$DIR/debs" "$DIR/npm" "$DIR/fmt" "$DIR/src" "$DIR/lists/partial" "$DIR/tree"
DIR=$(cd "$DIR" && pwd)

PYTHON="libpython3.11-stdlib python3-sympy python3-networkx python3-django python3-sqlalchemy python3-numpy python3-scipy
 python3-matplotlib python3-pandas python3-sklearn python3-twisted python3-flask python3-werkzeug python3-jinja2 python3-click
 python3-docutils python3-pygments python3-sphinx python3-pip python3-setuptools python3-requests python3-aiohttp
 python3-tornado python3-babel python3-rich python3-attr python3-pytest python3-hypothesis
 python3-cinder python3-nova python3-neutron python3-keystone python3-oslo.utils python3-skimage python3-statsmodels
 python3-distributed python3-dask"
C="musl libuv1 libevent curl jansson lua5.4 sqlite3 redis postgresql-15 nginx zlib libpng1.6 libjpeg-turbo jq tmux libxml2
 expat pcre2 libzstd lz4 memcached openssl mbedtls"
NPM="lodash express react react-dom vue underscore backbone jquery moment async axios commander chalk yargs webpack rollup
 eslint prettier mocha jest-worker three d3-array d3-scale d3-shape d3-geo mathjs ramda rxjs handlebars ejs marked highlight.js
 socket.io ws koa fastify uuid semver glob minimatch acorn esprima @babel/core @babel/parser @babel/traverse chart.js date-fns
 luxon immutable mongoose sequelize knex winston validator ajv leaflet p5 ol phaser mongodb cheerio jsdom codemirror@5 fabric@5"

echo "== Debian binary packages that carry source text"
cd "$DIR/debs" || exit 1
for p in $PYTHON; do
    ls "${p}"_*.deb >/dev/null 2>&1 || apt-get download -qq "$p" || echo "not fetched: $p"
done
echo "== Debian source packages"
cd "$DIR/src" || exit 1
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" >"$DIR/sources.list"
O="-o Dir::Etc::sourcelist=$DIR/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::Lists=$DIR/lists"
apt-get $O update -qq
for p in $C; do
    timeout 90 apt-get $O source --download-only -qq "$p" || echo "not fetched: $p"
done
echo "== npm packages"
cd "$DIR/npm" || exit 1
npm pack --silent $NPM >/dev/null || echo "some npm packages were not fetched"

echo "== formatters (tidy.py); clang-format comes from Debian"
(cd "$DIR/fmt" && npm init -y >/dev/null && npm install --silent esbuild @wasm-fmt/ruff_fmt) || echo "no formatters"

echo "== unpack"
for f in "$DIR"/debs/*.deb; do
    t="$DIR/tree/$(basename "$f" .deb)"
    [ -d "$t" ] || { mkdir -p "$t"; dpkg -x "$f" "$t"; }
done
for f in "$DIR"/npm/*.tgz "$DIR"/src/*.orig.tar.gz "$DIR"/src/*.orig.tar.xz "$DIR"/src/*.orig.tar.bz2; do
    [ -f "$f" ] || continue
    t="$DIR/tree/$(basename "$f")"
    [ -d "$t" ] || { mkdir -p "$t"; tar -xf "$f" -C "$t" 2>/dev/null; }
done
du -sh "$DIR/tree"
