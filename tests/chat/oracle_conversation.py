"""A rose conversation, told to the reference library."""

import openai_harmony as oh

from rose.chat.conversation import Conversation

EFFORTS = {
    "low": oh.ReasoningEffort.LOW,
    "medium": oh.ReasoningEffort.MEDIUM,
    "high": oh.ReasoningEffort.HIGH,
}


def oracle_render(oracle: oh.HarmonyEncoding, conversation: Conversation, *, drop_analysis: bool) -> list[int]:
    """Render with the reference. Only instructions at the head, as one message, have a place there."""
    system = oh.SystemContent.new().with_reasoning_effort(EFFORTS[conversation.reasoning_effort])
    if conversation.current_date:
        system = system.with_conversation_start_date(conversation.current_date)
    if conversation.model_identity:
        system = system.with_model_identity(conversation.model_identity)
    messages = [oh.Message.from_role_and_content(oh.Role.SYSTEM, system)]

    instructions = [m.content for m in conversation.messages if m.role in ("system", "developer") and m.content]
    developer = oh.DeveloperContent.new()
    if instructions:
        developer = developer.with_instructions("\n\n".join(instructions))
    if conversation.tools:
        tools = [oh.ToolDescription.new(t.name, t.description or "", t.parameters) for t in conversation.tools]
        developer = developer.with_function_tools(tools)
    if instructions or conversation.tools:
        messages.append(oh.Message.from_role_and_content(oh.Role.DEVELOPER, developer))

    names: dict[str, str] = {}
    for message in conversation.messages:
        if message.role == "user":
            messages.append(oh.Message.from_role_and_content(oh.Role.USER, message.content))
        elif message.role == "assistant":
            messages.extend(_assistant(message))
            names |= {call.id: call.name for call in message.tool_calls}
        elif message.role == "tool":
            # The published format has the recipient of a result before the channel, where this version of the reference
            # would write it behind.
            author = oh.Author.new(oh.Role.TOOL, f"functions.{names[message.tool_call_id]} to=assistant")
            messages.append(oh.Message.from_author_and_content(author, message.content).with_channel("commentary"))
    config = oh.RenderConversationConfig(auto_drop_analysis=drop_analysis)
    return oracle.render_conversation_for_completion(
        oh.Conversation.from_messages(messages), oh.Role.ASSISTANT, config=config
    )


def _assistant(message):
    def said(text):
        return oh.Message.from_role_and_content(oh.Role.ASSISTANT, text)

    if message.reasoning:
        yield said(message.reasoning).with_channel("analysis")
    if message.content:
        yield said(message.content).with_channel("commentary" if message.tool_calls else "final")
    for call in message.tool_calls:
        to_tool = said(call.arguments).with_channel("commentary").with_recipient(f"functions.{call.name}")
        yield to_tool.with_content_type("<|constrain|>json")
