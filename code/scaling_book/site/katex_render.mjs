// Reads one JSON request a line, {tex, display, macros}, and answers with one line: {html} or {error}.
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const katex = (await import(pathToFileURL(process.argv[2]))).default;

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { tex, display, macros } = JSON.parse(line);
  let answer;
  try {
    const html = katex.renderToString(tex, {
      displayMode: display,
      macros,
      throwOnError: true,
      strict: "error",
      trust: false,
      output: "htmlAndMathml", // MathML is what a screen reader reads
    });
    answer = { html };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
