// A client in another language: Temporal's own SDK and plain JSON. Needs a worker: 11_worker.py.
import { randomUUID } from 'node:crypto';
import { Client, Connection, WithStartWorkflowOperation } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';

const { connectionOptions, namespace } = loadClientConnectConfig(); // TEMPORAL_ADDRESS, a profile, TLS, an API key
const { workflow } = new Client({ connection: await Connection.connect(connectionOptions), namespace });
const startWorkflowOperation = new WithStartWorkflowOperation('AgentWorkflow', {
  workflowId: `support-${randomUUID()}`, // the conversation's id; the message opens it, or goes on with it
  workflowIdConflictPolicy: 'USE_EXISTING',
  taskQueue: process.env.PERDURE_TASK_QUEUE ?? 'perdure',
  args: [{ agent: 'support', mode: 'session', resume: true }], // resume: also where an earlier execution of it ended
});
const args = [{ content: process.argv[2] ?? 'Where is order 77?', id: randomUUID() }]; // the same id counts once
const { task_id }: any = await workflow.executeUpdateWithStart('send_message', { args, startWorkflowOperation });
const chat = await startWorkflowOperation.workflowHandle();
await chat.signal('inject_user_message', 'Be brief, please.'); // joins the turn at its next model call
const status: any = await chat.query('status');
console.log(`${status.context_id} is ${status.state}, at: ${status.doing}`);
let turn: any = { state: 'running' }; // { task_id, state, response: { content, usage, … }, error_type, error }
while (turn.state === 'running') turn = await chat.executeUpdate<any, [string]>('wait_for_turn', { args: [task_id] });
console.log(turn.response?.content ?? turn.error);
await chat.signal('close');
