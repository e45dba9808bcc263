"""What a trial runs beside the samples: a family, whose children act outside and are joined before their parent does."""

from pydantic import BaseModel, Field

from agentops.demo import tools
from agentops.demo.workflows import refund_request
from runs.engine.context import Context
from runs.workflow import Child, Complete, Goto, Workflow


class Complaint(BaseModel):
    order_id: str
    message: str


class Round(BaseModel):
    complaints: list[Complaint] = Field(min_length=1, max_length=20)


refund_round = Workflow(
    "refund_round",
    input=Round,
    title="Refund round",
    description="Handles several complaints at once, each in a child run, and files one ticket about all of them.",
    subject=lambda given: f"{len(given.complaints)} complaints",
)


@refund_round.step(start=True)
def handle(ctx: Context) -> Goto:
    ends = ctx.children([Child(refund_request, one.model_dump()) for one in ctx.input.complaints])
    ctx.state["ends"] = [end.status for end in ends]
    return Goto(report)


@refund_round.step
def report(ctx: Context) -> Complete:
    ends = ctx.state["ends"]
    ticket = ctx.call(
        tools.file_ticket,
        subject=f"{len(ends)} complaints were handled",
        text=", ".join(ends),
        order_id=ctx.input.complaints[0].order_id,
        run_id=ctx.run_id,
    )
    return Complete({"ends": ends, "ticket": ticket.id})
