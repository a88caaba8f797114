"""Strings that tokenizers, renderers and readers get wrong, and random ones from a seed.

    from hard_strings import HARD, random_strings
"""
import random

HARD = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n", "\t", " \n", "\n ", "  \n\n  x", "x \n", "a  b", "a   b", "\u00a0", "a\u00a0\u00a0b", "\u3000你好\u3000",
    "Hello, world!", "HELLO World hELLO", "it's IT'S it'S we'Re I'LL he'd they'VE 'tis ''s 'ſ it'ſ", "don’t", "1", "12", "123", "1234", "1234567", "3.14159e-10",
    "٣٤٥٦٧", "Ⅷ½²³¹", "x=1;y=2;//z\n", "for (int i = 0; i < n; i++) {\n    a[i] += b[i];\n}\n", "def f(x):\n\treturn x**2  # comment\n\n\n", "#include <stdio.h>\r\n\r\n",
    "你好，世界！", "中文English混排123测试", "々〇〻㐀㐁𠀀𪜀", "⺀⼀〡〢〇", "ひらがなカタカナ漢字", "한국어 텍스트", "이것은 테스트입니다.", "각 가각", "ภาษาไทย", "हिन्दी में", "العربية", "עברית",
    "e\u0301 é \u0301 a\u0323\u0301", "Å \u212b \u2126", "ﬁ ﬂ ﬀ", "ǅ ǆ Ǆ ʰ ˀ ª º", "ͅ ⓐ Ⓐ 🄰", "ÀÉÎõü ßẞ", "ÀB Áb aÀ", "ΑΒΓ αβγ", "Привет МИР мИр", "𝐀𝐁𝐜𝐝 𝟎𝟏𝟐", "🙂", "👩‍👩‍👧‍👦👍🏽", "🇩🇪🇨🇳",
    "\u200b\u200c\u200d\ufeff", "\u2028\u2029\u0085\u000b\u000c\u001c\u001d\u001e\u001f", "\x00\x01\x7f", "\ufffd\ufffe\uffff\U0010ffff", "\ud7ff\ue000",
    "!!!", "...", "?!?!\n\n", " !\n", "!/\n/", "--- ===\n", "a/b\\c", "/\r\n/", "「引用」『书名』—…", "<|open|>message role=\"user\"<|sep|>", "[BOS][EOS]<|im_end|>", "<｜User｜>hi",
    "<|endoftext|>", "<think>\n</think>", "a" * 300, "ab" * 300, " " * 300, "\n" * 300, " \n" * 200, "啊" * 300, "A" * 129, "aA" * 100, "1" * 301, "!" * 301, "\u0301" * 300,
    "\r\r\r", "\n\r\n\r", " \r \n ", "x\r", "'", "''", "'S", "s'", "'re'", " 'll", "\u017f", "K", "'K", "https://example.com/a?b=c&d=%20#e", "user@example.com",
    "CamelCaseWordsAndACRONYMSInHTTPServer", "snake_case_and_kebab-case", "iPhone15ProMax", "３４５６ＡＢｃ", "①②③㊀㈱", "№℃℉", "\u0660\u06f0\u0966", "a\u0300b\u0300", "\u0958\u095c",
    "\u1100\u1161\u11a8", "\uac00\u11a8", "\U0001d160", "\u0f73\u0f71\u0f72", "q\u0307\u0323", "\u1e9b\u0323",
]

POOLS = [
    [chr(c) for c in range(32, 127)],
    list(" \n\r\t'\"0123456789abcXYZ.,;:!?/\\-_()[]{}<>|@#$%^&*+=~`"),
    [chr(c) for c in range(0x4e00, 0x9fa6, 7)] + list("，。！？、；：“”（）《》"),
    [chr(c) for r in ((0x3040, 0x3100), (0xac00, 0xac80), (0x1100, 0x1200), (0x3400, 0x3420), (0x20000, 0x20010), (0x2e80, 0x2fe0)) for c in range(*r)],
    [chr(c) for r in ((0xa0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x5d0, 0x5f0), (0x600, 0x700), (0x900, 0x980), (0xe00, 0xe60)) for c in range(*r)],
    [chr(c) for r in ((0x300, 0x370), (0x1ab0, 0x1b00), (0x20d0, 0x2100), (0xfe20, 0xfe30), (0x1e00, 0x1f00), (0x1f00, 0x2000)) for c in range(*r)],
    [chr(c) for r in ((0x2000, 0x2070), (0x2070, 0x2200), (0x2460, 0x2500), (0xff00, 0xffef), (0x1f300, 0x1f700), (0x1d400, 0x1d800)) for c in range(*r)],
    list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"),
    ["'s", "'T", "'re", "'VE", "'m", "'LL", "'d", "'ſ", "s", "S", "ſ", "'"],
]
ANY = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]


def random_strings(n, seed=1, most=60):
    r = random.Random(seed)
    for i in range(n):
        k = r.randint(1, most)
        if i % 4 == 0:
            yield "".join(chr(r.choice(ANY)) for _ in range(k))
        elif i % 4 == 1:
            yield "".join(r.choice(r.choice(POOLS)) for _ in range(k))
        else:
            few = [r.choice(POOLS) for _ in range(2)]
            yield "".join(r.choice(r.choice(few)) for _ in range(k))
