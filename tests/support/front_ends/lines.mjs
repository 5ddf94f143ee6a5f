// A client under the control of a test: a line of JSON in is an operation, a line out its answer. Operations run at the
// same time; what they wait for is what the client sees.

import { createInterface } from 'node:readline';

export const warnings = [];
for (const level of ['warn', 'error']) {
  console[level] = (...what) => warnings.push(what.map(String).join(' '));
}

// A client that loses its connection leaves rejections behind that nothing awaits. A browser logs them, Node would end.
process.on('unhandledRejection', () => {});
process.on('uncaughtException', () => {});

export function serve(operations) {
  createInterface({ input: process.stdin })
    .on('line', async (line) => {
      const { id, op, ...given } = JSON.parse(line);
      let answer;
      try {
        answer = { value: (await operations[op](given)) ?? null };
      } catch (error) {
        answer = { error: error?.stack ?? String(error) };
      }
      process.stdout.write(`${JSON.stringify({ id, ...answer })}\n`);
    })
    .on('close', () => process.exit(0));
  process.stdout.write('{"id":0,"value":null}\n');
}

// What has happened, for those who wait until something has.
export class Log {
  entries = [];
  #waiting = new Set();

  add(entry) {
    this.entries.push(entry);
    for (const check of this.#waiting) check();
  }

  until(isSeen) {
    return new Promise((resolve) => {
      const check = () => {
        if (isSeen(this.entries)) {
          this.#waiting.delete(check);
          resolve(true);
        }
      };
      this.#waiting.add(check);
      check();
    });
  }
}
