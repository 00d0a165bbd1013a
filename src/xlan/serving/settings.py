"""The settings of a server; the defaults are those of `xlan serve`."""

from __future__ import annotations

from dataclasses import dataclass, field

from xlan.errors import ConfigError
from xlan.vision.image import ImageLimits

# A phone's 48-megapixel mode passes; a picture with transparency takes about 15 bytes a pixel while it is opened.
DEFAULT_UPLOAD_LIMITS = ImageLimits(max_bytes=20 << 20, max_pixels=50_000_000)


@dataclass(frozen=True)
class ServeSettings:
    """What a server allows and how it shares the model.

    Attributes:
        model_name: what answers call the model; never a path.
        card: the model card, as text.
        token: what clients must send as bearer token; None for no token.
        hosts: names that the Host header of a request may have; None for any. This keeps out pages of other sites whose
            name was made to point here (DNS rebinding).
        max_batch: most pictures in one call of the model.
        max_wait: seconds a picture waits for others to join its batch while the model is idle.
        queue: most pictures that are accepted and not yet with the model.
        heavy_queue: the same for pictures with costly options (see `heavy_cost`): these are captioned one at a time,
            beside the others.
        heavy_cost: a caption that may take more steps of the model than this is costly (`Captioner.cost`).
        max_cost: a request that may take more steps than this is refused.
        timeout: seconds from a whole request to its answer.
        limits: largest picture in bytes and in pixels.
        lanes: threads that share the pictures of a batch, torch itself being left at one thread each.
        openers: threads that open pictures.
        large_pixels: pictures that claim more pixels than this are opened one at a time, in a thread of their own.
        header_timeout: seconds a client may take for its request's header.
        stall_timeout: seconds without a byte while a body is read, or an answer is not taken.
        body_timeout: seconds for a whole body.
        idle_timeout: seconds a connection may stay open between requests.
        rescan: seconds between looks for new, changed and removed photos of the library; 0 for none.
        connections: most open connections; beyond it the one that has been silent longest is closed.
    """

    model_name: str = "model"
    card: str = ""
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] | None = None
    max_batch: int = 16
    max_wait: float = 0.005
    queue: int = 64
    heavy_queue: int = 4
    heavy_cost: int = 500
    max_cost: int = 20_000
    timeout: float = 30.0
    limits: ImageLimits = DEFAULT_UPLOAD_LIMITS
    lanes: int = 1
    openers: int = 2
    large_pixels: int = 16_000_000
    header_timeout: float = 10.0
    stall_timeout: float = 10.0
    body_timeout: float = 60.0
    idle_timeout: float = 5.0
    rescan: float = 60.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "heavy_queue", "heavy_cost", "max_cost", "lanes", "openers", "connections"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("timeout", "header_timeout", "stall_timeout", "body_timeout", "idle_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        for name in ("max_wait", "rescan"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}: expected 0 or more seconds, got {getattr(self, name)}")
        if self.token is not None and not self.token.isascii():
            raise ConfigError("token: expected ASCII characters only, others cannot be sent in a header")

    @property
    def max_body(self) -> int:
        """Most bytes of a request's body: base64 makes a picture a third larger, and there are options beside it."""
        return self.limits.max_bytes * 4 // 3 + (64 << 10)

    @property
    def body_memory(self) -> int:
        """Most bytes of all bodies held at once, however many clients send."""
        return max(4 * self.max_body, 256 << 20)
