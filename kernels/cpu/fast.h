/* fast.h - assembles a fast variant. The including file defines quant_kernel and transpose16, and
 * the macros FLOAT_ROWS and FLOAT_VECS (tile of float products; FLOAT_VECS_MAX for one row),
 * ATT_ROWS and ATT_VECS (tile of attention), VARIANT and VARIANT_NAME. All fast variants have equal
 * numerics: the same additions in the same order, see fast_*.h. */
#include "kernels/cpu/fast_attention.h"
#include "kernels/cpu/fast_matmul.h"
#include "kernels/cpu/fast_rows.h"

#define FAST_VARIANT(variant_name, has_vdpbf16ps)                                                  \
	{                                                                                              \
		.name = variant_name, .numerics = "cpu-r4", .packed = true, .vdpbf16ps = has_vdpbf16ps,    \
		.rms_norm = fast_rms_norm, .rope = fast_rope, .act_mul = fast_act_mul,                     \
		.tile_bytes = fast_tile_bytes, .rounded_floats = fast_rounded_floats,                      \
		.make_ready = fast_make_ready, .panels = fast_panels, .product = fast_product,             \
		.att_share = fast_att_share, .att_scratch = fast_att_scratch, .att_state = fast_att_state, \
		.att_item = fast_att_item, .att_join = fast_att_join,                                      \
	}
const struct cpu_variant VARIANT = FAST_VARIANT(VARIANT_NAME, false);
