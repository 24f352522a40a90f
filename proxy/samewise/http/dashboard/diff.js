// Two texts, token by token.

const MOST = 600;

export function tokens(side) {
  if (Array.isArray(side.tokens) && side.tokens.every((each) => typeof each === "string")) return side.tokens;
  return (side.text ?? "").match(/\s*[^\s]+|\s+/gu) ?? [];
}

// Pieces [kind, text], kind one of same, gone (only in the first) and come (only in the second).
export function difference(first, second) {
  let begin = 0;
  while (begin < first.length && begin < second.length && first[begin] === second[begin]) begin += 1;
  let end = 0;
  while (
    end < first.length - begin &&
    end < second.length - begin &&
    first[first.length - 1 - end] === second[second.length - 1 - end]
  )
    end += 1;
  const pieces = first.slice(0, begin).map((text) => ["same", text]);
  pieces.push(...middle(first.slice(begin, first.length - end), second.slice(begin, second.length - end)));
  pieces.push(...first.slice(first.length - end).map((text) => ["same", text]));
  return pieces;
}

function middle(first, second) {
  if (first.length > MOST || second.length > MOST)
    return [...first.map((text) => ["gone", text]), ...second.map((text) => ["come", text])];
  const longest = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1));
  for (let i = first.length - 1; i >= 0; i -= 1)
    for (let j = second.length - 1; j >= 0; j -= 1)
      longest[i][j] =
        first[i] === second[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const pieces = [];
  let i = 0;
  let j = 0;
  while (i < first.length || j < second.length) {
    if (i < first.length && j < second.length && first[i] === second[j]) {
      pieces.push(["same", first[i]]);
      i += 1;
      j += 1;
    } else if (j >= second.length || (i < first.length && longest[i + 1][j] >= longest[i][j + 1])) {
      pieces.push(["gone", first[i]]);
      i += 1;
    } else {
      pieces.push(["come", second[j]]);
      j += 1;
    }
  }
  return pieces;
}
