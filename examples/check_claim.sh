#!/usr/bin/env bash
# Check a claim without Canon: nothing is used but openssl, sha256sum, base64 and sed.
#
#   check_claim.sh CLAIM ROOTS.pem [OPENING [FILE...]]
#
# Says whether the signature holds, what each time-stamp shows, whether what the opening shows stands in the tree, and
# which of the files were committed to. Exit status 0: all of it holds. docs/claims.md explains every step.
set -euo pipefail
export LC_ALL=C
claim=$1 roots=$2 opening=${3-}
shift $(($# < 3 ? $# : 3))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "WRONG: $*" >&2; exit 1; }
hash_of() { sha256sum | cut -c1-64; }
to_bytes() { printf '%b' "$(sed 's/../\\x&/g' <<<"$1")"; }

# 1. The file: line 2 is the signed envelope, and every line in quotes behind line 3 a time-stamp.
[ "$(sed -n 1p "$claim")" = '{"format":"canon-claim","version":1,"envelope":' ] || fail "no claim of version 1"
[ "$(sed -n 3p "$claim")" = ',"timestamps":[' ] || fail "the claim's lines are not in their places"
[ "$(tail -n 1 "$claim")" = ']}' ] || fail "the claim is cut off"
sed -n 2p "$claim" | tr -d '\n' >"$work/envelope"
shape='\{"payload":"([A-Za-z0-9+/=]+)","payloadType":"application/vnd\.in-toto\+json","signatures":\[\{"keyid":"([0-9a-f]{64})","sig":"([A-Za-z0-9+/=]+)"\}\]\}'
[[ $(cat "$work/envelope") =~ ^$shape$ ]] || fail "the envelope is damaged"
base64 -d <<<"${BASH_REMATCH[1]}" >"$work/payload"
name=${BASH_REMATCH[2]}
base64 -d <<<"${BASH_REMATCH[3]}" >"$work/signature"

# 2. The statement: a root, a number of leaves, and the owner's public key, in one spelling.
shape='\{"_type":"https://in-toto\.io/Statement/v1","predicate":\{"created":"([0-9TZ:-]+)","leaves":([0-9]+),"owner":"([^"]+)","tree":"rfc6962-sha256"\},"predicateType":"urn:canon-nso:claim:v1","subject":\[\{"digest":\{"sha256":"([0-9a-f]{64})"\},"name":"commitment"\}\]\}'
[[ $(cat "$work/payload") =~ ^$shape$ ]] || fail "the statement is no claim"
created=${BASH_REMATCH[1]} leaves=${BASH_REMATCH[2]} root=${BASH_REMATCH[4]}
printf '%b' "${BASH_REMATCH[3]}" >"$work/key.pem"
[ "$(openssl pkey -pubin -in "$work/key.pem" -outform DER | hash_of)" = "$name" ] || fail "signed with another key"

# 3. The signature, over type and payload with their lengths (DSSE).
{ printf 'DSSEv1 28 application/vnd.in-toto+json %d ' "$(wc -c <"$work/payload")"; cat "$work/payload"; } >"$work/signed"
kind=$(openssl pkey -pubin -in "$work/key.pem" -noout -text)
signed=(-verify "$work/key.pem" -signature "$work/signature" "$work/signed")
case $kind in
    *ED25519*) holds=(openssl pkeyutl -verify -pubin -inkey "$work/key.pem" -rawin -in "$work/signed" -sigfile "$work/signature") ;;
    *P-256*) holds=(openssl dgst -sha256 "${signed[@]}") ;;
    *P-384*) holds=(openssl dgst -sha384 "${signed[@]}") ;;
    *P-521*) holds=(openssl dgst -sha512 "${signed[@]}") ;;
    *) holds=(openssl dgst -sha256 -sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:-2 "${signed[@]}") ;;
esac
"${holds[@]}" >"$work/said" 2>&1 || fail "the signature does not hold"
echo "signature: holds; owner's key $name; the claim says $created of itself"

# 4. The time-stamps: each stamps the file as it was with its first few time-stamps.
sed -n '4,$s/^"\(.*\)",\{0,1\}$/\1/p' "$claim" >"$work/tokens"
count=$(wc -l <"$work/tokens")
for ((index = 0; index <= count; index++)); do
    { sed -n 1,3p "$claim"; head -n "$index" "$work/tokens" | sed 's/.*/"&"/; $!s/$/,/'; echo ']}'; } >"$work/state$index"
done
cmp -s "$work/state$count" "$claim" || fail "the claim's lines are not in their places"
good=0
for ((index = 1; index <= count; index++)); do
    sed -n "${index}p" "$work/tokens" | base64 -d >"$work/token" || fail "time-stamp $index is no base64"
    said="shows nothing"
    for ((state = 0; state < index; state++)); do
        if openssl ts -verify -data "$work/state$state" -in "$work/token" -CAfile "$roots" >"$work/said" 2>&1; then
            said=$(openssl ts -reply -in "$work/token" -text 2>/dev/null | sed -n 's/^Time stamp: //p')
            good=$((good + 1))
            break
        fi
    done
    echo "time-stamp $index: $said"
done
[ "$good" -gt 0 ] || fail "no time-stamp holds"

# 5. The opening: every leaf leads to the root.
[ -n "$opening" ] || exit 0
shape='^(\{"content":.*),"index":([0-9]+),"path":\[([0-9a-f",]*)\],("role":"([a-z_]+)","salt":"[0-9a-f]{64}"\})$'
places=(canon options reference layout_key)
sed -n '2,/^\],"tensors":$/p' "$opening" | sed '$d; s/,$//' >"$work/leaves"
[ -s "$work/leaves" ] || fail "the opening shows nothing"
while IFS= read -r line; do
    [[ $line =~ $shape ]] || fail "a leaf of the opening is damaged"
    data="${BASH_REMATCH[1]},${BASH_REMATCH[4]}" index=${BASH_REMATCH[2]} role=${BASH_REMATCH[5]} depth=0
    IFS=',' read -ra way <<<"$(tr -d '"' <<<"${BASH_REMATCH[3]}")"
    [ $((1 << ${#way[@]})) -eq "$leaves" ] && [ "$index" -lt "$leaves" ] || fail "leaf $index does not fit the tree"
    [ "$role" = none ] || [ "$role" = "${places[$index]-watermark_key}" ] || fail "leaf $index is in another's place"
    value=$({ printf '\0'; printf '%s' "$data"; } | hash_of)
    for neighbour in "${way[@]}"; do
        if (((index >> depth) & 1)); then pair=$neighbour$value; else pair=$value$neighbour; fi
        value=$(to_bytes "01$pair" | hash_of)
        depth=$((depth + 1))
    done
    [ "$value" = "$root" ] || fail "leaf $index ($role) does not lead to the root: it was not committed to"
    echo "leaf $index: $role, committed to"
done <"$work/leaves"

# 6. Files, by their SHA-256.
for file in "$@"; do
    grep -q "\"file\":\"$(hash_of <"$file")\"" "$work/leaves" || fail "$file was not committed to"
    echo "file $file: committed to"
done
