// Runs what a test asks for in a browser: a line of standard input is a JSON string with the body of an async function of `page`, `browser`,
// `axe` and `complaints`; a line of standard output is {"value": …} or {"error": …}.
import {AxeBuilder} from '@axe-core/playwright';
import {chromium} from 'playwright-core';
import {createInterface} from 'node:readline';

const [executablePath] = process.argv.slice(2);
const browser = await chromium.launch({executablePath, args: ['--no-sandbox']}); // a test may run as root
const page = await (await browser.newContext({viewport: {width: 1280, height: 800}})).newPage();
page.setDefaultTimeout(120_000); // a busy machine does much else
const complaints = [];
page.on('console', (m) => complaints.push(m.text()));
page.on('pageerror', (e) => complaints.push(e.message));

const axe = async () => {
  const {violations} = await new AxeBuilder({page}).analyze();
  return violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id}: ${v.nodes[0].html}`);
};

const AsyncFunction = (async () => {}).constructor;
for await (const line of createInterface({input: process.stdin})) {
  let answer;
  try {
    answer = {value: (await new AsyncFunction('page', 'browser', 'axe', 'complaints', JSON.parse(line))(page, browser, axe, complaints)) ?? null};
  } catch (error) {
    answer = {error: String(error)};
  }
  console.log(JSON.stringify(answer));
}
await browser.close();
