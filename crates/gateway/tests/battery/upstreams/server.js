// The same API as server.py, which says what it does.

const http = require("http");

const runs = [];
const released = new Set();
let waiting = [];

const begun = (tenant) => runs.filter((run) => run.tenant === tenant);

function until(holds) {
  return new Promise((resolve) => {
    waiting.push({ holds, resolve });
    changed();
  });
}

function changed() {
  const now = waiting.filter((one) => one.holds());
  waiting = waiting.filter((one) => !now.includes(one));
  now.forEach((one) => one.resolve());
}

async function control(url, response) {
  const tenant = url.searchParams.get("tenant");
  if (url.pathname === "/control/release") {
    released.add(tenant);
    changed();
  }
  if (url.pathname === "/control/begun") {
    await until(() => begun(tenant).length >= Number(url.searchParams.get("times")));
  }
  const body = Buffer.from(JSON.stringify(begun(tenant)));
  response.writeHead(200, { "content-type": "application/json", "content-length": body.length });
  response.end(body);
}

// The bytes of an answer, to send a part of them.
function whole(status, lines, body) {
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join("");
  const start = `HTTP/1.1 ${status} As asked\r\n${head}content-length: ${body.length}\r\n\r\n`;
  return Buffer.concat([Buffer.from(start), body]);
}

async function serve(request, response) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces);
  const url = new URL(request.url, "http://localhost");
  if (url.pathname.startsWith("/control/")) return control(url, response);
  const said = (request.headers["x-do"] || "").split(" ").map((word) => word.split("="));
  const words = Object.fromEntries(said);
  const tenant = request.headers["x-tenant"] || "";
  runs.push({
    tenant,
    path: request.url,
    key: request.headers["idempotency-key"] || "",
    attempt: request.headers["idempotency-attempt"] || "",
    body: body.length < 1000 ? body.toString("latin1") : "",
  });
  const number = begun(tenant).length;
  changed();
  if ("hold" in words) await until(() => released.has(tenant));
  if ("hang-up" in words) return request.socket.destroy();
  let answer = Buffer.from(`{"id":"pay_${number}"}`);
  const lines = [["location", `/payments/pay_${number}`], ["content-type", "application/json"]];
  if ("lines" in words) {
    lines.push(["link", '</a>; rel="x,y", </b>'], ["x-warning", "second"]);
    lines.push(["link", "</c>"], ["x-warning", "first"], ["x-empty", ""]);
  }
  if ("cookie" in words) {
    lines.push(["set-cookie", "session=1; HttpOnly"], ["set-cookie", "csrf=2"]);
  }
  if ("echo" in words) answer = body;
  if ("big" in words) answer = Buffer.alloc(Number(words.big), "x");
  const status = Number(words.status || 201);
  if ("cut" in words) {
    const part = whole(status, lines, answer).subarray(0, Number(words.cut));
    return request.socket.write(part, () => request.socket.end());
  }
  const plain = status === 204 || status === 304;
  if (!plain) lines.push(["content-length", String(answer.length)]);
  response.writeHead(status, "As asked", lines.flat());
  response.end(plain || request.method === "HEAD" ? undefined : answer);
}

const server = http.createServer((request, response) => {
  serve(request, response).catch(() => request.socket.destroy());
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
